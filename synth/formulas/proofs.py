"""Proofs of a question, computed from graph and corpus alone.

*Without* a triple means without it and everything connected to the target only through it. A triple is needed if the formula without it has
more answers (it never has fewer); the target's last constraint is always needed. Triples between two constants do not constrain the target:
they are listed and otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from synth.formulas.projections import Values, exceeds, solve
from synth.formulas.projections import witnesses as find_witnesses
from synth.formulas.triples import TARGET, is_constant, members
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Document, Triple


@dataclass(frozen=True, slots=True)
class Proofs:
    """Properties of a question; triples are given by position in the formula."""

    answers: tuple[str, ...]
    """All answers by the graph, sorted."""
    redundant: tuple[int, ...] = ()
    """Triples whose removal does not change the answers."""
    shortcuts: tuple[int, ...] = ()
    """Triples between the target and a constant."""
    constant_edges: tuple[int, ...] = ()
    unsupported: tuple[int, ...] = ()
    """Triples whose fact is in no document, for the first witness of some answer."""
    easy: bool | None = None
    """Whether searching for the question's text returns a document of the answer first; None without a search."""

    def record(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def prove(
    graph: KnowledgeGraph,
    formula: Sequence[Triple],
    question: str = "",
    retrieve: Callable[[str], Document | None] | None = None,
    witnesses: Mapping[str, Values] | None = None,
) -> Proofs:
    """Prove a formula and, given `question` and `retrieve` (top hit of a search), whether its wording is easy.

    A document of the answer states, for one answer's witness, the fact of every triple that touches the target.

    Args:
        witnesses: first witness of every answer, if already known.

    Raises:
        MalformedFormula: the formula has a defect other than triples of two constants.
    """
    constant_edges = tuple(n for n, (subject, _, value) in enumerate(formula) if is_constant(subject) and is_constant(value))
    numbered = [(number, triple) for number, triple in enumerate(formula) if number not in constant_edges]
    proper = [triple for _, triple in numbered]
    if witnesses is None:
        witnesses = first_witnesses(graph, proper)
    answers = frozenset(witnesses)
    support = [[_stating(graph, triple, values) for triple in proper] for values in witnesses.values()]
    return Proofs(
        answers=tuple(sorted(answers)),
        redundant=tuple(number for place, (number, _) in enumerate(numbered) if not is_needed(graph, proper, place, answers)),
        shortcuts=tuple(number for number, triple in numbered if is_shortcut(triple)),
        constant_edges=constant_edges,
        unsupported=tuple(number for place, (number, _) in enumerate(numbered) if not all(stated[place] for stated in support)),
        easy=_is_easy(proper, support, question, retrieve),
    )


def first_witnesses(graph: KnowledgeGraph, formula: Sequence[Triple]) -> dict[str, Values]:
    return find_witnesses(graph, formula, solve(graph, formula))


def is_needed(graph: KnowledgeGraph, formula: Sequence[Triple], number: int, answers: frozenset[str]) -> bool:
    """Whether the formula without the triple has more than `answers`."""
    rest = without(formula, number)
    return not rest or exceeds(graph, rest, answers)


def without(formula: Sequence[Triple], number: int) -> tuple[Triple, ...]:
    """Formula without the triple and everything connected to the target only through it."""
    left = [triple for place, triple in enumerate(formula) if place != number]
    kept: set[int] = set()
    reached, grown = {TARGET}, True
    while grown:
        touching = {n for n, (s, _, o) in enumerate(left) if n not in kept and (s in reached or o in reached)}
        reached.update(node for n in touching for node in (left[n][0], left[n][2]) if not is_constant(node))
        kept |= touching
        grown = bool(touching)
    return tuple(triple for place, triple in enumerate(left) if place in kept)


def is_shortcut(triple: Triple) -> bool:
    """Whether a triple joins the target to a constant."""
    return TARGET in (triple[0], triple[2]) and (is_constant(triple[0]) or is_constant(triple[2]))


def _stating(graph: KnowledgeGraph, triple: Triple, values: Values) -> set[str]:
    subject, relation, value = triple
    left, right = (members(node) if is_constant(node) else (values[node],) for node in (subject, value))
    stating = (document for a in left for b in right for document in graph.stating_either_way(a, relation, b))
    return {document for document in stating if document in graph.documents}


def _is_easy(
    formula: Sequence[Triple], support: list[list[set[str]]], question: str, retrieve: Callable[[str], Document | None] | None
) -> bool | None:
    if retrieve is None or not question:
        return None
    found = retrieve(question)
    touching = [place for place, triple in enumerate(formula) if TARGET in (triple[0], triple[2])]
    return found is not None and any(all(found.id in stated[place] for place in touching) for stated in support)
