"""What a table of the lake is made of: columns that know their type, their meaning and the field that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

import pyarrow as pa

from warehouse.codec import Kind

R = TypeVar("R")

RECORDED = "When the row was written, UTC."
"""What the column `recorded`, which every table has, means."""
PIECE_ROWS = 5_120
"""Rows that are encoded at a time: a quarter of what `migrations` lets a row group hold, so that no core waits long for its first."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its kind, what it means, and where its value comes from (the record's attribute of that name by default)."""

    name: str
    kind: Kind
    comment: str
    derive: Callable[[Any], Any] | None = None

    def values(self, records: Iterable[Any]) -> list[Any]:
        """The column's value of each record."""
        return list(map(self.derive or attrgetter(self.name), records))


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """A table, what it means, the record that its rows are, and the columns that tell rows apart."""

    name: str
    comment: str
    record: type[R]
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """The statement that makes the table."""
        columns = ", ".join(f'"{column.name}" {column.kind.sql}' for column in self.columns)
        return f'CREATE TABLE {self.name} ({columns}, "recorded" TIMESTAMP)'

    def keys_of(self, records: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """The values of the key columns in their order, for each record."""
        columns = {column.name: column for column in self.columns}
        return zip(*(columns[name].values(records) for name in self.key), strict=True)

    def encode(self, records: Sequence[Any]) -> pa.Table:
        """One Arrow column for each column of the table but `recorded`."""
        arrays = {column.name: column.kind.encode(column.values(records)) for column in self.columns}
        return pa.table(arrays)

    def pieces(self, records: Sequence[Any]) -> Iterator[Callable[[], pa.Table]]:
        """The same in pieces, each encoded when it is called."""
        return (partial(self.encode, records[start : start + PIECE_ROWS]) for start in range(0, len(records), PIECE_ROWS))

    def encode_keys(self, keys: Sequence[tuple[Any, ...]]) -> pa.Table:
        """An Arrow table of the key columns alone."""
        kinds = {column.name: column.kind for column in self.columns}
        values = zip(*keys, strict=True) if keys else [()] * len(self.key)
        return pa.table({name: kinds[name].encode(list(column)) for name, column in zip(self.key, values, strict=True)})

    def decode(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Lists of values for each column that stands in `batch`, by name."""
        kinds = {column.name: column.kind for column in self.columns}
        return {name: kinds[name].decode(batch.column(name)) for name in batch.schema.names}

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The record's fields that have a column, in the order of its constructor."""
        names = {column.name for column in self.columns}
        return tuple(field.name for field in fields(self.record) if field.name in names)  # type: ignore[arg-type]
