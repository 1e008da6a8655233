"""Solving formulas: exactly the entities that the graph proves to be answers.

A formula whose unknowns form a tree is WebShaper's own recursion T = R1(T1) ∩ … ∩ Rk(Tk), evaluated from the leaves to the target.
A formula with a circle is first relaxed to a tree, which gives a superset, and each candidate is then proved by a search for
values of all unknowns. Facts hold in both directions, as the knowledge projection says.
"""

from __future__ import annotations

from collections.abc import Sequence

from synth.formulas import TARGET, is_constant, members, unknowns, validate
from synth.graph import KnowledgeGraph
from warehouse.records import Triple

Values = dict[str, str]
"""An unknown's value, by its node."""


class MalformedFormula(ValueError):
    """A formula that `validate` finds fault with."""


def solve(graph: KnowledgeGraph, formula: Sequence[Triple]) -> frozenset[str]:
    """The answers to `formula`: every value of the target for which all other unknowns have values too.

    Raises:
        MalformedFormula: where `validate` finds a problem.
    """
    if problems := validate(formula):
        raise MalformedFormula(problems[0].detail)
    candidates = _image(graph, TARGET, _spread(formula))
    if candidates and not _is_tree(formula):
        candidates = {answer for answer in candidates if witness(graph, formula, answer) is not None}
    return frozenset(candidates)


def witness(graph: KnowledgeGraph, formula: Sequence[Triple], answer: str) -> Values | None:
    """Values of all unknowns under which every triple holds and the target is `answer`; None where there are none.

    Of several the first in the order of the graph's facts.
    """
    return _extend(graph, _in_order(formula), {TARGET: answer})


def _is_tree(formula: Sequence[Triple]) -> bool:
    """Whether the unknowns form a tree: one link fewer than nodes (validation has seen that they are connected)."""
    links = sum(not is_constant(subject) and not is_constant(value) for subject, _, value in formula)
    return links == len(unknowns(formula)) - 1


def _spread(formula: Sequence[Triple]) -> dict[str, list[Triple]]:
    """For each unknown the triples that hang below it in a tree that is rooted in the target; triples closing a circle are left out."""
    below: dict[str, list[Triple]] = {node: [] for node in unknowns(formula)}
    placed, used = [TARGET], {TARGET}
    taken: set[int] = set()
    for node in placed:
        for number, triple in enumerate(formula):
            if number in taken or node not in (triple[0], triple[2]):
                continue
            taken.add(number)
            other = triple[2] if triple[0] == node else triple[0]
            if is_constant(other) or other == node or other not in used:
                below[node].append(triple)
            if not is_constant(other) and other not in used:
                used.add(other)
                placed.append(other)
    return below


def _image(graph: KnowledgeGraph, node: str, below: dict[str, list[Triple]]) -> set[str]:
    """The values that `node` can have given what hangs below it."""
    image: set[str] | None = None
    for subject, relation, value in below[node]:
        other = value if subject == node else subject
        if is_constant(other):
            part = graph.project(relation, members(other))
        elif other != node and below[other]:
            part = graph.project(relation, _image(graph, other, below))
        else:
            part = graph.endpoints(relation)
        image = part if image is None else image & part
    return image or set()


def _in_order(formula: Sequence[Triple]) -> list[Triple]:
    """The triples in an order in which each has a constant or an unknown of an earlier one, starting from the target."""
    ordered: list[Triple] = []
    left, known = list(formula), {TARGET}
    while left:
        following = min(left, key=lambda triple: sum(not is_constant(n) and n not in known for n in (triple[0], triple[2])))
        left.remove(following)
        ordered.append(following)
        known.update(node for node in (following[0], following[2]) if not is_constant(node))
    return ordered


def _extend(graph: KnowledgeGraph, triples: list[Triple], values: Values) -> Values | None:
    """Values for the unknowns of `triples` on top of those given, by depth-first search."""
    if not triples:
        return values
    (subject, relation, value), rest = triples[0], triples[1:]
    for pair in _pairs(graph, relation, _known(subject, values), _known(value, values)):
        bound = {node: text for node, text in zip((subject, value), pair, strict=True) if not is_constant(node)}
        if subject == value and pair[0] != pair[1]:
            continue
        found = _extend(graph, rest, values | bound)
        if found is not None:
            return found
    return None


def _known(node: str, values: Values) -> tuple[str, ...] | None:
    """What a node can be, or None for an unknown without a value."""
    if is_constant(node):
        return members(node)
    return (values[node],) if node in values else None


def _pairs(graph: KnowledgeGraph, relation: str, left: tuple[str, ...] | None, right: tuple[str, ...] | None) -> list[tuple[str, str]]:
    """The pairs that the relation joins in either direction, of the values allowed at each end (None: any)."""
    if left is None and right is None:
        left = tuple(sorted(graph.endpoints(relation)))
    if left is None:
        return [(other, here) for here in right or () for other in dict.fromkeys(graph.adjacent(relation, here))]
    pairs = [(here, other) for here in left for other in dict.fromkeys(graph.adjacent(relation, here))]
    return pairs if right is None else [pair for pair in pairs if pair[1] in right]
