"""Rows of Arrow's columns within the bounds of `warehouse.bounds`, and of others' folders that `datasets` has saved.

A value that stands in a column a million times stands in such a file once, and so do a million empty lists: what counts are the rows
written out, their bytes and their values. Columns are read as what they are: `datasets` would open the image or the sound, and with it any
file or address, that a row of a folder of its own names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warehouse.bounds import MIB, oversized, read_json, room_for, values_for
from warehouse.errors import RequestError

if TYPE_CHECKING:
    import pyarrow

SAVED, SPLITS = "state.json", "dataset_dict.json"
"""The files by which `datasets` knows a data set, and one of several splits, that it has saved."""
BATCH_ROWS = 1024
_FILE = b"ARROW1"
"""How a file of Arrow's begins: two bytes of padding and a stream follow."""
_HEADER, _COMPRESSION, _DICTIONARY_DATA = 2, 3, 1
"""Places of fields in Arrow's messages (`format/Message.fbs`): a message's header, a batch's compression, a dictionary's batch."""


def is_saved(path: Path) -> bool:
    """Whether `path` is a folder that `datasets` has saved."""
    return (path / SAVED).is_file() or (path / SPLITS).is_file()


def saved_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a folder that `datasets` has saved, of several splits those of `train`.

    Raises:
        RequestError: it has no such split, or a file of it is missing, leads out of the folder, or cannot be read.
        Oversized: the rows hold more than the files have room for.
    """
    folder = path / _train_of(path) if (path / SPLITS).is_file() else path
    for file in _files_of(folder):
        yield from arrow_rows(file)


def is_arrow(path: Path) -> bool:
    """Whether a file is Arrow's, a file or a stream, by its first bytes."""
    with path.open("rb") as file:
        return file.read(6).startswith((_FILE, b"\xff\xff\xff\xff"))


def arrow_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file or stream of Arrow's. Raises as `saved_rows` does."""
    yield from rows_within(_batches(path), path, max(room_for(path), path.stat().st_size), values_for(path))


def _train_of(path: Path) -> str:
    splits = _texts(path / SPLITS, "splits")
    if "train" not in splits:
        raise RequestError(f"{path} has no split train, but {', '.join(splits)}: name the folder of one of them.")
    return "train"


def _files_of(folder: Path) -> list[Path]:
    """The Arrow files of a data set, in their order."""
    files = [folder / name for name in _texts(folder / SAVED, "_data_files", "filename")]
    outside = [file for file in files if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file()]
    if outside:
        raise RequestError(f"{folder / SAVED} names {str(outside[0])!r:.200}, which is no file of that folder: save the data set again.")
    return files


def _texts(file: Path, key: str, inner: str | None = None) -> list[str]:
    """The texts listed under `key` of a JSON file, or under `inner` in the objects listed there."""
    try:
        listed = read_json(file.read_bytes())[key]
        texts = [one if inner is None else one[inner] for one in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{file} cannot be read as what `datasets` saves ({type(error).__name__}): save the data set again.") from error
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{file} lists something else than texts under {key}: save the data set again.")
    return texts


def _batches(file: Path) -> Iterator[pyarrow.RecordBatch]:
    """The batches of a stream of Arrow's; raises RequestError where one is packed, which `datasets` never does."""
    import pyarrow as pa
    import pyarrow.ipc as ipc

    try:
        with file.open("rb") as beginning:
            start = 8 if beginning.read(6) == _FILE else 0
        with pa.memory_map(str(file)) as source:
            source.seek(start)
            if any(_is_packed(message) for message in ipc.MessageReader.open_stream(source)):
                raise RequestError(f"{file} has packed columns, which are not read: save it again without compression.")
        with pa.memory_map(str(file)) as source:
            source.seek(start)
            for batch in ipc.open_stream(source):
                batch.validate(full=True)  # nothing else looks whether its offsets stay within it
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
    except (pa.ArrowException, OSError, struct.error) as error:
        raise RequestError(f"{file} is no stream of Arrow's that can be read ({error}): save the data set again.") from error


def _is_packed(message: Any) -> bool:
    """Whether the columns of a message are packed: a few of its bytes may then stand for any number of them."""
    if message.type not in ("record batch", "dictionary"):
        return False
    data = message.metadata.to_pybytes()
    batch = _table(data, struct.unpack_from("<I", data, 0)[0], _HEADER)
    if batch is not None and message.type == "dictionary":
        batch = _table(data, batch, _DICTIONARY_DATA)
    return batch is None or _table(data, batch, _COMPRESSION) is not None


def _table(data: bytes, table: int, field: int) -> int | None:
    """Where the table begins that is a field of another (FlatBuffers); None where it is not there."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    length = struct.unpack_from("<H", data, fields)[0]
    offset = struct.unpack_from("<H", data, fields + 4 + 2 * field)[0] if 4 + 2 * field < length else 0
    return table + offset + struct.unpack_from("<I", data, table + offset)[0] if offset else None


def rows_within(batches: Iterable[pyarrow.RecordBatch], path: Path, room: int, values: int) -> Iterator[dict[str, Any]]:
    """The rows of batches; raises Oversized where they hold more bytes or values in all than there is room for."""
    left, count = room, values
    for batch in batches:
        _check_names(batch.schema, path)
        sizes = [_written_out(column, path) for column in batch.columns]
        left -= sum(size for size, _ in sizes)
        count -= len(batch) + sum(number for _, number in sizes)
        if left < 0:
            raise oversized(path, f"more than {room // MIB:,} MiB", "that")
        if count < 0:
            raise oversized(path, f"more than {values:,} values", "that")
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:
            raise RequestError(f"{path} holds a text that is no UTF-8 ({error}): write it again.") from error
        yield from rows


def _check_names(fields: Iterable[pyarrow.Field], path: Path) -> None:
    """Raises RequestError where two columns, or two keys of an object, have one name: a row would have one of them."""
    import pyarrow as pa

    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"{path} has two columns {twice!r}: give each a name of its own.")
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_names([kind.field(place) for place in range(kind.num_fields)], path)


def _written_out(array: pyarrow.Array, path: Path) -> tuple[int, int]:
    """The bytes of an array in which each text stands as often as it is named, and its values, those within lists and objects too.

    Raises RequestError for a type whose values may share what they hold in other ways.
    """
    import pyarrow as pa

    kind, types = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return _written_out(array.storage, path)
    if types.is_dictionary(kind):
        return _of_dictionary(array, path), len(array)
    if types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        inner = [array.keys.slice(start, end - start), array.items.slice(start, end - start)]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = [array.flatten()]
    elif types.is_struct(kind):
        inner = array.flatten()
    elif types.is_nested(kind) or types.is_run_end_encoded(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
        raise RequestError(f"{path} has a column of the type {kind}, which is not read: write it as plain texts, numbers and lists.")
    else:
        return int(array.nbytes), len(array)
    sizes = [_written_out(one, path) for one in inner]
    return sum(size for size, _ in sizes), len(array) + sum(number for _, number in sizes)


def _of_dictionary(array: pyarrow.DictionaryArray, path: Path) -> int:
    """The bytes of an array of which each value stands once, and its places."""
    import pyarrow as pa
    import pyarrow.compute as compute

    kind = array.dictionary.type
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        raise RequestError(f"{path} has a column of the type {array.type}, which is not read: write it as plain texts, numbers and lists.")
    if not len(array.dictionary) or not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
        return int(len(array) * max(1, array.dictionary.nbytes // max(1, len(array.dictionary))))
    sizes = compute.binary_length(array.dictionary)
    return int(compute.sum(sizes.cast(pa.int64()).take(array.indices)).as_py() or 0)
