"""A path: how an agent that searches gets from a question's constants to its answer, one document after the other.

A hop reads one document. The document is found either by the name that the hop before gave (or the question, at the start), or by
two things known about it: "the film with director Amber Stone and star Blue River". A path becomes a formula, and from a
formula and its answer the path is traced again, so the formula alone is the record.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from rl.retrieval.search import Index
from synth.formulas.projections import Values, witness
from synth.formulas.triples import TARGET, VARIABLE, constant, is_constant, members
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Document, Triple


@dataclass(frozen=True, slots=True)
class Anchor:
    """Something known about the entity that is looked for: a relation of it and the values that its object may have.

    `linked` where the value is what the hop before gave; otherwise the values stand in the question.
    """

    relation: str
    values: tuple[str, ...]
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Hop:
    """One document to read: about `entity`, found by its name or by `anchors`, then `relation` is followed to `value`.

    `relation` is None in a last hop whose answer is the entity itself.
    """

    entity: str
    relation: str | None
    value: str
    anchors: tuple[Anchor, ...] = ()

    @property
    def query(self) -> str:
        """What to search for: the name, or all that is known."""
        return " ".join(value for anchor in self.anchors for value in anchor.values) if self.anchors else self.entity


Route = tuple[Hop, ...]

Retrieve = Callable[[str], Document | None]
"""The first document that a search for a text gives, if any."""


def first_hit(index: Index) -> Retrieve:
    """The search over an index, as a function that gives its best document."""
    return lambda query: next(iter(index.find(query).documents), None)


def first_real_hit(index: Index, documents: Container[str]) -> Retrieve:
    """The search over an index whose hits need not be documents of the corpus, as a function that gives the first where it is one."""

    def retrieve(query: str) -> Document | None:
        document = next(iter(index.find(query).documents), None)
        return document if document is not None and document.id in documents else None

    return retrieve


def stating_documents(graph: KnowledgeGraph, hop: Hop) -> set[str]:
    """The ids of the documents that state everything a hop needs: the fact it follows and, of each anchor, one value."""
    needed = [(anchor.relation, anchor.values) for anchor in hop.anchors]
    if hop.relation is not None:
        needed.append((hop.relation, (hop.value,)))
    return set.intersection(*({d for v in values for d in graph.stating(hop.entity, relation, v)} for relation, values in needed))


def find_document(graph: KnowledgeGraph, hop: Hop, retrieve: Retrieve | None) -> Document | None:
    """The document that a search for the hop's query gives, if it states what the hop needs.

    A title is found without a search: every search of ours gives the document of that title first.
    """
    titled = None if hop.anchors else graph.titled(hop.query)
    document = titled or (retrieve(hop.query) if retrieve is not None else None)
    return document if document is not None and document.id in stating_documents(graph, hop) else None


def formula_of(path: Route) -> tuple[Triple, ...]:
    """The conjunction of projections whose target is the end of `path`."""
    triples: list[Triple] = []
    before = constant(path[0].entity)
    for number, hop in enumerate(path, start=1):
        last = number == len(path)
        subject = before
        if hop.anchors:
            subject = TARGET if last and hop.relation is None else f"{VARIABLE}X{number}"
            triples += [(subject, a.relation, before if a.linked else constant(*a.values)) for a in hop.anchors]
        if hop.relation is not None:
            before = TARGET if last else f"{VARIABLE}Y{number}"
            triples.append((subject, hop.relation, before))
    return tuple(triples)


def trace(graph: KnowledgeGraph, formula: Sequence[Triple], answer: str, values: Values | None = None) -> Route | None:
    """The path that `formula` describes and that ends in `answer`; None where there is none or it is no single line.

    It reads formulas that begin at one constant, or at an entity of which two or more things are known, and lead on forward.
    `values` are those of the first witness, where they are known.
    """
    values = values or witness(graph, formula, answer)
    if values is None:
        return None
    hops: list[Hop] = []
    left, before = list(formula), ""
    while left:
        subject = _next_subject(left, before)
        if subject is None:
            return None
        mine = [triple for triple in left if triple[0] == subject]
        left = [triple for triple in left if triple[0] != subject]
        hop = _read_hop(mine, subject, before, left, values)
        if hop is None:
            return None
        hops.append(hop[0])
        before = hop[1]
    return tuple(hops) if hops and hops[-1].value == answer and before == TARGET else None


def _next_subject(left: Sequence[Triple], before: str) -> str | None:
    """The node whose document is read next: what the last hop gave, or what is known by it, or where everything is constant."""
    for subject, _, _ in left:
        if subject == before or (not before and is_constant(subject)):
            return subject
    for subject, _, value in left:
        if value == before or (not before and is_constant(value)):
            return subject
    return None


def _read_hop(mine: list[Triple], subject: str, before: str, left: list[Triple], values: dict[str, str]) -> tuple[Hop, str] | None:
    """The hop that reads the document of `subject`, and the node that it gives."""
    anchors = tuple(_anchor(triple, before, values) for triple in mine if is_constant(triple[2]) or triple[2] == before)
    followed = [triple for triple in mine if not is_constant(triple[2]) and triple[2] != before]
    entity = members(subject)[0] if is_constant(subject) else values[subject]
    if len(followed) == 1:
        _, relation, node = followed[0]
        return Hop(entity, relation, values[node], anchors), node
    if not followed and not left and subject == TARGET:
        return Hop(entity, None, entity, anchors), TARGET
    return None


def _anchor(triple: Triple, before: str, values: dict[str, str]) -> Anchor:
    _, relation, node = triple
    return Anchor(relation, (values[node],), linked=True) if node == before else Anchor(relation, members(node))
