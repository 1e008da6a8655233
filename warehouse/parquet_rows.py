"""Rows of others' Parquet files, within the bounds of `warehouse.bounds`.

What the pages say of themselves is added up before one is unpacked. A text that a dictionary has once may stand in any number of rows: it
is read as a dictionary, or few rows are read at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warehouse.arrow_rows import BATCH_ROWS, rows_within
from warehouse.bounds import MIB, MOST_ROW_BYTES, oversized, room_for, values_for
from warehouse.errors import RequestError
from warehouse.parquet_pages import CODED, DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY, Chunk, Page, footer_size, pages_of

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_FREE_FOOTER = 2 * MIB
"""Bytes of a footer beside a fiftieth of the file: Arrow takes two hundred for each."""
_MOST_LISTED = 100_000
"""Columns or groups of rows in one list of a footer: Arrow makes room for as many as are said to be there."""


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its first bytes."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


@dataclass(frozen=True, slots=True)
class Parquet:
    """An open Parquet file whose pages are within bounds."""

    file: pyarrow.parquet.ParquetFile
    path: Path
    batch_rows: int

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return list(self.file.schema_arrow.names)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Its rows; raises Oversized where they hold more than the file has room for."""
        yield from rows_within(self._batches(), self.path, room_for(self.path), values_for(self.path))

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        """A group of rows after the other: Arrow cannot join lists of texts whose dictionaries differ."""
        for group in range(self.file.metadata.num_row_groups):
            yield from self.file.iter_batches(self.batch_rows, row_groups=[group])


@contextmanager
def open_parquet(path: Path) -> Iterator[Parquet]:
    """A Parquet file.

    Raises:
        RequestError: it is none, or its pages cannot be read in one way alone.
        Oversized: its footer or its pages are too large, or hold too many values.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        _check_footer(path)
        with parquet.ParquetFile(path, thrift_container_size_limit=_MOST_LISTED) as whole:
            pages = _Pages(whole, path)
        with parquet.ParquetFile(path, read_dictionary=pages.texts, thrift_container_size_limit=_MOST_LISTED) as file:
            yield Parquet(file, path, pages.rows_at_once)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last where the name of a column is no text
        raise _unreadable(path, error) from error


def _check_footer(path: Path) -> None:
    try:
        size, most = footer_size(path), _FREE_FOOTER + path.stat().st_size // 50
    except ValueError as error:
        raise _unreadable(path, error) from error
    if size > most:
        raise oversized(path, f"what a footer of {size / MIB:,.1f} MiB tells of", f"one of {most / MIB:,.1f} MiB")


@dataclass(slots=True)
class _Texts:
    """What the pages of one column of texts hold."""

    words: int = 0
    """The bytes of its largest dictionary."""
    coded: int = 0
    """Its values that stand in dictionaries."""
    fronted: int = 0
    """The bytes of its largest page in which texts begin as the one before."""
    written: bool = False
    """Whether texts of it stand outside of dictionaries too."""
    spelt: bool = False
    """Whether some do in an encoding that Arrow reads no dictionary from."""

    def add(self, page: Page) -> None:
        if page.is_dictionary:
            self.words = max(self.words, page.size)
        elif page.encoding in CODED:
            self.coded += page.values
        else:
            self.written = True
            self.spelt |= page.encoding in (DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY)
            self.fronted = max(self.fronted, page.size) if page.encoding == DELTA_BYTE_ARRAY else self.fronted


class _Pages:
    """What the pages of a file hold together, and so how they are to be read. Raises the errors of `open_parquet`.

    Attributes:
        texts: the columns of which each text is to be read once, however often it stands there.
        rows_at_once: rows that take no more memory together than one row may.
    """

    def __init__(self, file: pyarrow.parquet.ParquetFile, path: Path) -> None:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(file.metadata.num_columns)]
        self._path, self._leaves = path, [file.schema.column(number) for number in range(len(file.schema))]
        rows = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
        self._size, self._values, self._written_out, self._longest = 0, rows, 0, 1
        self._texts = {number: _Texts() for number, leaf in enumerate(self._leaves) if leaf.physical_type == "BYTE_ARRAY"}
        self._check(0, rows + sum(chunk.num_values for chunk in chunks))
        try:
            for page in pages_of(path, [_place_of(chunk) for chunk in chunks]):
                self._add(page, page.chunk % len(self._leaves))
        except ValueError as error:
            raise _unreadable(path, error) from error
        self.texts: list[str] = []
        repeated = sum(self._decide(self._leaves[number], texts) for number, texts in self._texts.items())
        longest = max(self._longest, self._size // max(1, rows), repeated)
        self.rows_at_once = max(1, min(BATCH_ROWS, MOST_ROW_BYTES // longest))

    def _add(self, page: Page, leaf: int) -> None:
        self._size, self._values = self._size + page.size, self._values + page.values
        if leaf in self._texts:
            self._texts[leaf].add(page)
        elif self._leaves[leaf].physical_type == "FIXED_LEN_BYTE_ARRAY":
            self._written_out += page.values * self._leaves[leaf].length
        if page.size > MOST_ROW_BYTES:
            raise oversized(self._path, f"a page of {page.size / MIB:,.0f} MiB", f"{MOST_ROW_BYTES // MIB} MiB")
        self._check(max(self._size, self._written_out), self._values)
        self._longest = max(self._longest, page.size // max(1, page.values))

    def _decide(self, leaf: Any, texts: _Texts) -> int:
        """Whether the texts of a column are read once each; else the most bytes that one may have which is said in many places.

        Arrow adds up what it reads once where it stands outside of dictionaries, so that is left to lists that would not fit otherwise.
        """
        fits = texts.coded * texts.words <= room_for(self._path)
        in_lists = leaf.max_repetition_level > 0
        if (texts.words and not texts.written) or (in_lists and not fits and not texts.spelt):
            self.texts.append(leaf.path)
            return 0
        if in_lists and (texts.fronted or not fits):
            why = "lists of texts in the encoding DELTA_BYTE_ARRAY, which is not read: write it with PLAIN"
            raise RequestError(f"{self._path} has {why}.")
        return texts.fronted + (0 if fits else texts.words)

    def _check(self, size: int, values: int) -> None:
        if size > room_for(self._path):
            raise oversized(self._path, f"{size / MIB:,.0f} MiB", f"{room_for(self._path) // MIB:,} MiB")
        if values > values_for(self._path):
            raise oversized(self._path, f"{values:,} values", f"{values_for(self._path):,}")


def _place_of(chunk: Any) -> Chunk:
    """Where the pages of a column of a group of rows stand: those of data, or before them the one of its dictionary."""
    start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset or 0
    return Chunk(dictionary if 0 < dictionary < start else start, chunk.total_compressed_size, chunk.num_values)


def _unreadable(path: Path, error: Exception) -> RequestError:
    return RequestError(f"{path} is not a Parquet file that can be read ({error}): write it again.")
