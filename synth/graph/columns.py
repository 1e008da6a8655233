"""The facts of a graph in columns: entities and relations are numbers, and every fact stands in arrays sorted for three ways to ask.

By subject (compressed sparse rows, facts of one subject in the order in which they came), by object and relation, and by relation in
the order in which they came. Some forty bytes a fact, and nothing that Python's collector has to walk over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]

_SCAN = 64
"""Facts of one entity up to which a plain scan in Python beats a search in numpy."""


@dataclass(frozen=True, slots=True)
class FactColumns:
    """Different facts; a fact is known by its place in the order of its subject.

    Subjects are the entities 0 … len(starts) - 2; `of_object` and `of_relation` are the places of facts in the two other orders. The
    documents of a fact are `documents[document_starts[place] : document_starts[place + 1]]`.
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
        """Bytes of memory."""
        return sum(getattr(self, column.name).nbytes for column in fields(self))

    def places(self, subject: int) -> range:
        """The facts of one subject."""
        if subject >= len(self.starts) - 1:
            return range(0)
        return range(self.starts.item(subject), self.starts.item(subject + 1))

    def stated(self, subject: int) -> list[tuple[int, int]]:
        """Relation and object of the facts of one subject that a document states, but for those that lead back to it."""
        mine = self.places(subject)
        if not mine:
            return []
        part, counts = slice(mine.start, mine.stop), self.document_starts[mine.start : mine.stop + 1].tolist()
        rows = zip(self.relation[part].tolist(), self.object[part].tolist(), counts, counts[1:], strict=False)
        return [(relation, value) for relation, value, first, last in rows if first < last and value != subject]

    def stated_subjects(self) -> Ids:
        """The subjects of which `stated` gives something, by rising number."""
        mask = (np.diff(self.document_starts) > 0) & (self.object != self.subject)
        return np.unique(self.subject[mask])

    def subjects_with_shared_facts(self, most: int) -> Ids:
        """The subjects with two stated facts or more of which one is shared by 2 to `most` subjects, by rising number."""
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
        """What `relation` leads to from `subject`, in the order of the facts."""
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
        """The entities that `relation` leads from to `value`, in the order of the facts."""
        span = self.pointing(value, relation)
        return self.subject[self.of_object[span.start : span.stop]].tolist() if span else []

    def subjects_one_by_one(self, value: int, relation: int) -> Iterator[int]:
        """The same as `subjects`, for those who may stop after the first of a hundred thousand."""
        for place in self.pointing(value, relation):
            yield self.subject.item(self.of_object.item(place))

    def pointing(self, value: int, relation: int) -> range:
        """Where in `of_object` the facts of one relation with one object stand: its length is their number."""
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
        """The undirected image of one entity: its objects, then its subjects; an entity can stand in both."""
        return self.objects(entity, relation) + self.subjects(entity, relation)

    def spread(self, entity: int, relation: int) -> int:
        """How many `adjacent` gives, without giving them."""
        return len(self.objects(entity, relation)) + len(self.pointing(entity, relation))

    def place(self, subject: int, relation: int, value: int) -> int | None:
        """The place of a fact; None where it is not known."""
        if subject >= len(self.starts) - 1:
            return None
        first, last = self.starts.item(subject), self.starts.item(subject + 1)
        if last - first > _SCAN:
            found = np.flatnonzero((self.relation[first:last] == relation) & (self.object[first:last] == value))
            return first + int(found[0]) if len(found) else None
        objects = self.object[first:last].tolist()
        if value not in objects:  # mostly so
            return None
        pairs = list(zip(self.relation[first:last].tolist(), objects, strict=True))
        return first + pairs.index((relation, value)) if (relation, value) in pairs else None

    def joined(self, left: int, relation: int, right: int) -> bool:
        """Whether a fact of `relation` joins two entities, in either direction."""
        return self.place(left, relation, right) is not None or self.place(right, relation, left) is not None

    def endpoints(self, relation: int) -> list[int]:
        """Everything that takes part in a relation, by rising number."""
        places = self.with_relation(relation)
        return np.union1d(self.subject[places], self.object[places]).tolist()

    def with_relation(self, relation: int) -> Ids:
        """The places of all facts of a relation, in the order in which they came."""
        return self.of_relation[self.relation_starts[relation] : self.relation_starts[relation + 1]]


def arrange(
    subject: Ids, relation: Ids, value: Ids, entities: int, relations: int, stated: tuple[Ids, NDArray[np.int64]], source: Ids
) -> FactColumns:
    """Sort facts into columns. Equal triples become one fact with the documents of all of them and the source of the first.

    Args:
        subject, relation, value: one number a fact, in the order in which the facts came; subjects are numbered before all other entities.
        stated: the documents of the facts, flat, and for each of these the number of its fact.
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
    """For each fact the number of the first fact that is equal to it, and the numbers of these first facts, rising."""
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
    """A stable order in which equal triples are neighbours; one 64-bit key sorts faster than three columns, where it is wide enough."""
    if entities * relations * entities >= 2**63:
        return np.lexsort((value, relation, subject))
    return np.argsort((subject.astype(np.int64) * relations + relation) * entities + value, kind="stable")


def _starts(sorted_by: Ids, count: int) -> Ids:
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(sorted_by, minlength=count), out=starts[1:])
    return starts


def _documents(documents: Ids, place: Ids, facts: int) -> tuple[Ids, Ids]:
    """Starts and documents by fact, each document of a fact once, in the order in which they came."""
    order = np.lexsort((documents, place))
    new = np.ones(len(order), bool)
    new[1:] = (documents[order][1:] != documents[order][:-1]) | (place[order][1:] != place[order][:-1])
    kept = np.sort(order[new])
    kept = kept[np.argsort(place[kept], kind="stable")]
    return _starts(place[kept], facts), documents[kept]
