"""Graph facts as sorted numpy columns, and names as interned texts.

Facts are sorted by subject (compressed sparse rows, in original order), by object and relation, and by relation: about forty bytes per fact
and no Python objects to collect. A text costs its bytes plus sixteen; a CRC-32 hash table maps texts to numbers.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_RECENT = 50_000
"""Maximum decoded texts cached: about 5 MiB."""


class _Numbered(Sequence[str]):
    __slots__ = ("_length",)
    _length: int

    @abstractmethod
    def _text(self, number: int) -> str: ...

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...
    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        if isinstance(number, slice):
            return [self._text(place) for place in range(*number.indices(self._length))]
        if not -self._length <= number < self._length:
            raise IndexError(number)
        return self._text(number % self._length)


class Texts(_Numbered):
    """Distinct texts in a fixed order; the hash table for `number` is built on first use."""

    __slots__ = ("_bytes", "_offsets", "_read", "_recent", "_table")

    def __init__(self, texts: pa.Array) -> None:
        plain = texts.cast(pa.large_string())
        offsets = np.frombuffer(plain.buffers()[1], np.int64)[plain.offset : plain.offset + len(plain) + 1]
        data = plain.buffers()[2]
        held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
        self._bytes: NDArray[np.uint8] = held[offsets[0] : offsets[-1]].copy()
        self._offsets: NDArray[np.int64] = offsets - offsets[0]
        self._length = len(plain)
        self._table: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        self._recent: dict[str, int | None] = {}
        self._read: dict[int, str] = {}

    def _text(self, number: int) -> str:
        text = self._read.get(number)
        if text is None:
            if len(self._read) >= _RECENT:
                self._read.clear()
            text = self._read[number] = self._at(number).decode()
        return text

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(self._length))

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.number(text) is not None

    def number(self, text: str) -> int | None:
        """Number of a text; None if absent."""
        if text in self._recent:
            return self._recent[text]
        if len(self._recent) >= _RECENT:
            self._recent.clear()
        self._recent[text] = found = self._looked_up(text)
        return found

    def _looked_up(self, text: str) -> int | None:
        if self._table is None:
            self._table = _buckets(self._bytes, self._offsets)
        (starts, members), wanted = self._table, text.encode()
        bucket = zlib.crc32(wanted) & (len(starts) - 2)
        for place in range(starts.item(bucket), starts.item(bucket + 1)):
            number = members.item(place)
            if self._at(number) == wanted:
                return number
        return None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self._bytes, self._offsets, *(self._table or ())))

    def _at(self, number: int) -> bytes:
        return self._bytes[self._offsets.item(number) : self._offsets.item(number + 1)].tobytes()


class Prefix(_Numbered):
    __slots__ = ("_texts",)

    def __init__(self, texts: Texts, length: int) -> None:
        self._texts, self._length = texts, length

    def _text(self, number: int) -> str:
        return self._texts[number]


def intern(*columns: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[NDArray[np.int32]]]:
    """Distinct texts of all columns in order of occurrence, and each column as text numbers."""
    chunks = [chunk.cast(pa.large_string()) for column in columns for chunk in _chunks(column)]
    encoded = pc.dictionary_encode(pa.chunked_array(chunks, pa.large_string())).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # combine_chunks returns a ChunkedArray if there are no chunks
        return pa.array([], pa.large_string()), [np.zeros(0, np.int32) for _ in columns]
    numbers = encoded.indices.to_numpy().astype(np.int32, copy=False)
    ends = np.cumsum([0, *(len(column) for column in columns)])
    return encoded.dictionary, [numbers[start:end] for start, end in pairwise(ends)]


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _buckets(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    count = 1 << max(len(offsets) - 2, 1).bit_length()
    view = data.data
    ends = offsets.tolist()
    hashes = np.fromiter((zlib.crc32(view[start:end]) for start, end in pairwise(ends)), np.uint32, len(offsets) - 1)
    bucket = (hashes & np.uint32(count - 1)).astype(np.int32)
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(bucket, minlength=count), out=starts[1:])
    return starts, np.argsort(bucket, kind="stable").astype(np.int32)


Ids = NDArray[np.int32]

_SCAN = 64
"""Maximum facts per entity for which a Python scan beats numpy."""


@dataclass(frozen=True, slots=True)
class FactColumns:
    """Distinct facts, identified by their position in subject order.

    Subjects are entities 0 … len(starts) - 2. `of_object` and `of_relation` hold positions in the two other orders. The documents of a fact
    are `documents[document_starts[place] : document_starts[place + 1]]`.
    """

    starts: Ids
    subject: Ids
    relation: Ids
    object: Ids
    object_starts: Ids
    of_object: Ids
    object_relation: Ids
    relation_starts: Ids
    of_relation: Ids
    document_starts: Ids
    documents: Ids
    source: Ids

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, column.name).nbytes for column in fields(self))

    def places(self, subject: int) -> range:
        if subject >= len(self.starts) - 1:
            return range(0)
        return range(self.starts.item(subject), self.starts.item(subject + 1))

    def stated(self, subject: int) -> list[tuple[int, int]]:
        """(relation, object) of a subject's documented facts, without self-loops."""
        mine = self.places(subject)
        if not mine:
            return []
        part, counts = slice(mine.start, mine.stop), self.document_starts[mine.start : mine.stop + 1].tolist()
        rows = zip(self.relation[part].tolist(), self.object[part].tolist(), counts, counts[1:], strict=False)
        return [(relation, value) for relation, value, first, last in rows if first < last and value != subject]

    def stated_subjects(self) -> Ids:
        """Subjects with a `stated` fact, ascending."""
        mask = (np.diff(self.document_starts) > 0) & (self.object != self.subject)
        return np.unique(self.subject[mask])

    def subjects_with_shared_facts(self, most: int) -> Ids:
        """Subjects with at least two stated facts, one of them shared by 2 to `most` subjects; ascending."""
        stated = (np.diff(self.document_starts) > 0) & (self.object != self.subject)
        values = self.object[self.of_object]
        new = np.ones(len(values), bool)
        new[1:] = (values[1:] != values[:-1]) | (self.object_relation[1:] != self.object_relation[:-1])
        group = np.cumsum(new) - 1
        shared = np.empty(len(values), np.int64)
        shared[self.of_object] = np.bincount(group)[group] if len(group) else 0
        several = np.bincount(self.subject[stated], minlength=len(self.starts) - 1) > 1
        found = np.unique(self.subject[stated & (shared > 1) & (shared <= most)])
        return found[several[found]]

    def objects(self, subject: int, relation: int) -> list[int]:
        """Objects of `relation` from `subject`, in fact order."""
        mine = self.places(subject)
        if not mine:
            return []
        if len(mine) > _SCAN:
            part = slice(mine.start, mine.stop)
            return self.object[part][self.relation[part] == relation].tolist()
        values = self.object[mine.start : mine.stop].tolist()
        relations = self.relation[mine.start : mine.stop].tolist()
        return [value for value, other in zip(values, relations, strict=True) if other == relation]

    def subjects(self, value: int, relation: int) -> list[int]:
        """Subjects of `relation` to `value`, in fact order."""
        span = self.pointing(value, relation)
        return self.subject[self.of_object[span.start : span.stop]].tolist() if span else []

    def subjects_one_by_one(self, value: int, relation: int) -> Iterator[int]:
        """Lazy `subjects`, for callers that stop early."""
        for place in self.pointing(value, relation):
            yield self.subject.item(self.of_object.item(place))

    def pointing(self, value: int, relation: int) -> range:
        """Range in `of_object` of the facts with this relation and object."""
        first, last = self.object_starts.item(value), self.object_starts.item(value + 1)
        if last - first <= _SCAN:
            relations = self.object_relation[first:last].tolist()
            if relation not in relations:
                return range(0)
            start = first + relations.index(relation)
            return range(start, start + relations.count(relation))
        left, right = np.searchsorted(self.object_relation[first:last], (relation, relation + 1)).tolist()
        return range(first + left, first + right)

    def adjacent(self, entity: int, relation: int) -> list[int]:
        """Undirected image of one entity: objects, then subjects, possibly repeated."""
        return self.objects(entity, relation) + self.subjects(entity, relation)

    def spread(self, entity: int, relation: int) -> int:
        """Length of `adjacent`, without computing it."""
        return len(self.objects(entity, relation)) + len(self.pointing(entity, relation))

    def place(self, subject: int, relation: int, value: int) -> int | None:
        if subject >= len(self.starts) - 1:
            return None
        first, last = self.starts.item(subject), self.starts.item(subject + 1)
        if last - first > _SCAN:
            found = np.flatnonzero((self.relation[first:last] == relation) & (self.object[first:last] == value))
            return first + int(found[0]) if len(found) else None
        objects = self.object[first:last].tolist()
        if value not in objects:
            return None
        pairs = list(zip(self.relation[first:last].tolist(), objects, strict=True))
        return first + pairs.index((relation, value)) if (relation, value) in pairs else None

    def joined(self, left: int, relation: int, right: int) -> bool:
        """Whether a fact of `relation` joins two entities, in either direction."""
        return self.place(left, relation, right) is not None or self.place(right, relation, left) is not None

    def endpoints(self, relation: int) -> list[int]:
        places = self.with_relation(relation)
        return np.union1d(self.subject[places], self.object[places]).tolist()

    def with_relation(self, relation: int) -> Ids:
        """Positions of a relation's facts, in original order."""
        return self.of_relation[self.relation_starts[relation] : self.relation_starts[relation + 1]]


def arrange(
    subject: Ids, relation: Ids, value: Ids, entities: int, relations: int, stated: tuple[Ids, NDArray[np.int64]], source: Ids
) -> FactColumns:
    """Sort facts into columns. Equal triples are merged, with the union of their documents and the first source.

    Args:
        subject, relation, value: one number per fact, in original order; subjects are numbered before all other entities.
        stated: documents of all facts, flat, and the fact number of each.
    """
    leader, first = _merged(subject, relation, value, entities, relations)
    by_subject = first[np.argsort(subject[first], kind="stable")]
    s, r, o = subject[by_subject], relation[by_subject], value[by_subject]
    rank = np.empty(len(subject), np.int32)
    rank[by_subject] = np.arange(len(by_subject), dtype=np.int32)
    in_order = rank[first]
    of_object = in_order[np.lexsort((r[in_order], o[in_order]))]
    of_relation = in_order[np.argsort(r[in_order], kind="stable")]
    document_starts, documents = _documents(stated[0], rank[leader[stated[1]]], len(by_subject))
    return FactColumns(
        starts=_starts(s, int(s.max(initial=-1)) + 1),
        subject=s,
        relation=r,
        object=o,
        object_starts=_starts(o, entities),
        of_object=of_object,
        object_relation=r[of_object],
        relation_starts=_starts(r, relations),
        of_relation=of_relation,
        document_starts=document_starts,
        documents=documents,
        source=source[by_subject],
    )


def _merged(subject: Ids, relation: Ids, value: Ids, entities: int, relations: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First equal fact of each fact, and these first facts in ascending order."""
    order = _sorted_triples(subject, relation, value, entities, relations)
    new = np.ones(len(order), bool)
    new[1:] = False
    for column in (subject, relation, value):
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    leader = np.empty(len(order), np.int64)
    leader[order] = order[new][np.cumsum(new) - 1]
    return leader, np.sort(order[new])


def _sorted_triples(subject: Ids, relation: Ids, value: Ids, entities: int, relations: int) -> NDArray[np.int64]:
    """Stable order that groups equal triples; one 64-bit key sorts faster than three columns."""
    if entities * relations * entities >= 2**63:
        return np.lexsort((value, relation, subject))
    return np.argsort((subject.astype(np.int64) * relations + relation) * entities + value, kind="stable")


def _starts(sorted_by: Ids, count: int) -> Ids:
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(sorted_by, minlength=count), out=starts[1:])
    return starts


def _documents(documents: Ids, place: Ids, facts: int) -> tuple[Ids, Ids]:
    order = np.lexsort((documents, place))
    new = np.ones(len(order), bool)
    new[1:] = (documents[order][1:] != documents[order][:-1]) | (place[order][1:] != place[order][:-1])
    kept = np.sort(order[new])
    kept = kept[np.argsort(place[kept], kind="stable")]
    return _starts(place[kept], facts), documents[kept]
