"""Tables of the lake as columns with their type, comment and source field.

A column type converts Python values to an Arrow array and back. Lists are converted over flat values and offsets, since per-element
conversion of token ids would dominate every read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, TypeVar

import pyarrow as pa

from warehouse.records import Part, PartKind

Encode = Callable[[Sequence[Any]], pa.Array]
Decode = Callable[[pa.Array], list[Any]]
_PART_FIELDS = ("kind", "text", "learnt", "tool", "ids")
_KINDS = {kind.value: kind for kind in PartKind}
R = TypeVar("R")
RECORDED = "When the row was written, UTC."
"""Comment of the column `recorded`, which every table has."""
PIECE_ROWS = 5_120
"""Rows encoded per piece: a quarter of a row group (`version`), so that no core waits long for its first piece."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """SQL type of a column, and its conversions from values to an array and back."""

    sql: str
    encode: Encode
    decode: Decode


def _scalar(sql: str, arrow: pa.DataType) -> ColumnType:
    return ColumnType(sql, partial(pa.array, type=arrow), pa.Array.to_pylist)


def _encode_texts(values: Sequence[Sequence[str]]) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(values), pa.array(list(chain.from_iterable(values)), pa.string()))


def _encode_numbers(values: Sequence[Sequence[float]], arrow: pa.DataType, code: str) -> pa.Array:
    # Packing row by row takes about half the time of NumPy or Arrow for token ids.
    packed = b"".join([_packer(code, len(row))(*row) for row in values if row])
    offsets = _offsets(values)
    flat = pa.Array.from_buffers(arrow, offsets[-1].as_py(), [None, pa.py_buffer(packed)])
    return pa.ListArray.from_arrays(offsets, flat)


@lru_cache(maxsize=8_192)
def _packer(code: str, length: int) -> Callable[..., bytes]:
    return Struct(f"{length}{code}").pack


def _offsets(values: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, values))], pa.int32())


def _decode_list(array: pa.Array) -> list[tuple[Any, ...]]:
    flat = _values(array.values)
    return [tuple(flat[start:end]) for start, end in pairwise(array.offsets.to_pylist())]


def _values(array: pa.Array) -> list[Any]:
    if array.null_count == 0 and (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return list(array.to_numpy().tolist())
    return list(array.to_pylist())


def _numbers(sql: str, arrow: pa.DataType, code: str) -> ColumnType:
    """Lists of numbers; `code` is their type in `struct`."""
    return ColumnType(sql, partial(_encode_numbers, arrow=arrow, code=code), _decode_list)


def _encode_parts(values: Sequence[Sequence[Part]]) -> pa.Array:
    flat = list(chain.from_iterable(values))
    columns = [
        pa.array([part.kind for part in flat], pa.string()),
        pa.array([part.text for part in flat], pa.string()),
        pa.array([part.learnt for part in flat], pa.bool_()),
        pa.array([part.tool for part in flat], pa.string()),
        INTEGERS.encode([part.ids for part in flat]),
    ]
    return pa.ListArray.from_arrays(_offsets(values), pa.StructArray.from_arrays(columns, names=list(_PART_FIELDS)))


def _decode_parts(array: pa.Array) -> list[tuple[Part, ...]]:
    kinds, texts, learnt, tools = (array.values.field(name).to_pylist() for name in _PART_FIELDS[:4])
    ids = INTEGERS.decode(array.values.field("ids"))
    flat = list(map(Part, map(_KINDS.__getitem__, kinds), texts, learnt, tools, ids))
    return [tuple(flat[start:end]) for start, end in pairwise(array.offsets.to_pylist())]


def to_json(value: Any) -> str:
    """JSON text of `value`; unsupported values become text, and non-finite numbers null."""
    if value == {}:
        return "{}"  # the most common value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _encode_json(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else to_json(value) for value in values], pa.string())


def _decode_json(array: pa.Array) -> list[Any]:
    return [None if text is None else json.loads(text) for text in array.to_pylist()]


def _decode_triples(array: pa.Array) -> list[tuple[tuple[str, ...], ...]]:
    return [tuple(tuple(triple) for triple in formula) for formula in _decode_json(array)]


def _encode_times(values: Sequence[datetime | None]) -> pa.Array:
    """Times as UTC without a zone, so that clients need no time zone data; naive times are taken as UTC."""
    return pa.array(values, pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))


def _decode_times(array: pa.Array) -> list[datetime | None]:
    return [None if value is None else value.replace(tzinfo=UTC) for value in array.to_pylist()]


def _decode_enum(array: pa.Array, enum: type[StrEnum]) -> list[StrEnum | None]:
    return [None if value is None else enum(value) for value in array.to_pylist()]


def enumeration(enum: type[StrEnum]) -> ColumnType:
    """Text in the table, a member of `enum` in the record."""
    return ColumnType("VARCHAR", partial(pa.array, type=pa.string()), partial(_decode_enum, enum=enum))


TEXT = _scalar("VARCHAR", pa.string())
BYTES = _scalar("BLOB", pa.large_binary())
INTEGER = _scalar("BIGINT", pa.int64())
REAL = _scalar("DOUBLE", pa.float64())
FLAG = _scalar("BOOLEAN", pa.bool_())
TEXTS = ColumnType("VARCHAR[]", _encode_texts, _decode_list)
INTEGERS = _numbers("INTEGER[]", pa.int32(), "i")
REALS = _numbers("DOUBLE[]", pa.float64(), "d")
PARTS = ColumnType("STRUCT(kind VARCHAR, text VARCHAR, learnt BOOLEAN, tool VARCHAR, ids INTEGER[])[]", _encode_parts, _decode_parts)
JSON = ColumnType("JSON", _encode_json, _decode_json)
TRIPLES = ColumnType("JSON", _encode_json, _decode_triples)
TIME = ColumnType("TIMESTAMP", _encode_times, _decode_times)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: name, type, comment, and `derive`, which computes its value (None: the record's attribute `name`).

    `part` names an attribute of the record to read from instead, such as the turn of a row made from a turn and its owner.
    """

    name: str
    kind: ColumnType
    comment: str
    derive: Callable[[Any], Any] | None = None
    part: str | None = None

    def values(self, records: Iterable[Any]) -> list[Any]:
        """Value of the column for each record or part."""
        return list(map(self.derive or attrgetter(self.name), records))


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """A table: comment, record type, key columns and columns."""

    name: str
    comment: str
    record: type[R]
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        columns = ", ".join(f'"{column.name}" {column.kind.sql}' for column in self.columns)
        return f'CREATE TABLE {self.name} ({columns}, "recorded" TIMESTAMP)'

    def keys_of(self, records: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        columns = {column.name: column for column in self.columns}
        return zip(*(columns[name].values(records) for name in self.key), strict=True)

    def encode(self, records: Sequence[Any]) -> pa.Table:
        """Arrow table of all columns except `recorded`."""
        # Look up each part once per record, not per column, which took a fifth of the time for turns.
        parts = {part: records if part is None else list(map(attrgetter(part), records)) for part in {c.part for c in self.columns}}
        return pa.table({column.name: column.kind.encode(column.values(parts[column.part])) for column in self.columns})

    def pieces(self, records: Sequence[Any]) -> Iterator[Callable[[], pa.Table]]:
        """Like `encode`, in lazily encoded pieces."""
        return (partial(self.encode, records[start : start + PIECE_ROWS]) for start in range(0, len(records), PIECE_ROWS))

    def encode_keys(self, keys: Sequence[tuple[Any, ...]]) -> pa.Table:
        kinds = {column.name: column.kind for column in self.columns}
        values = zip(*keys, strict=True) if keys else [()] * len(self.key)
        return pa.table({name: kinds[name].encode(list(column)) for name, column in zip(self.key, values, strict=True)})

    def decode(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Decoded values of each column in `batch`, by name."""
        kinds = {column.name: column.kind for column in self.columns}
        return {name: kinds[name].decode(batch.column(name)) for name in batch.schema.names}

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The record's fields that have a column, in constructor order."""
        names = {column.name for column in self.columns}
        return tuple(field.name for field in fields(self.record) if field.name in names)  # type: ignore[arg-type]
