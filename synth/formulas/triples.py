"""The form of a question's formula: triples of variables, constants and the target, and what can be wrong with them.

A formula is a conjunction of knowledge projections (WebShaper, arXiv 2507.15061). A node is a variable `V@name`, a constant `C@text`, or
the target, exactly `?`; every `?` in a formula is the same target. A union is folded into one merged constant whose members
are joined by " | ": `C@1990 | 1991`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from warehouse.digests import digest
from warehouse.records import Triple

TARGET = "?"
VARIABLE = "V@"
CONSTANT = "C@"
UNION = " | "


class MalformedFormula(ValueError):
    """A formula that `validate` finds fault with, or an expression of the algebra that has no formula."""


class FormulaDefect(StrEnum):
    """What is wrong with a formula."""

    EMPTY = "empty"
    ARITY = "arity"
    PREFIX = "prefix"
    RELATION = "relation"
    TARGET = "target"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True)
class Problem:
    """One defect, the number of the triple that has it (None for the formula as a whole) and a sentence about it."""

    defect: FormulaDefect
    triple: int | None
    detail: str


def constant(*members: str) -> str:
    """The constant of one text, or of several as their union, in alphabetical order."""
    return CONSTANT + UNION.join(sorted(members))


def members(node: str) -> tuple[str, ...]:
    """The texts that a constant stands for."""
    return tuple(node.removeprefix(CONSTANT).split(UNION))


def is_constant(node: str) -> bool:
    """Whether the node is a constant; else it is a variable or the target."""
    return node.startswith(CONSTANT)


def nodes_of(formula: Iterable[Triple]) -> Iterator[str]:
    """The two ends of each triple."""
    return (node for subject, _, value in formula for node in (subject, value))


def unknowns(formula: Iterable[Triple]) -> list[str]:
    """The variables and the target, in the order in which they first occur."""
    return list(dict.fromkeys(node for node in nodes_of(formula) if not is_constant(node)))


def count_constants(formula: Iterable[Triple]) -> int:
    """How many ends of triples are constants."""
    return sum(map(is_constant, nodes_of(formula)))


def layers(formula: Sequence[Triple]) -> Iterator[list[Triple]]:
    """The triples of a tree of projections by their distance from the target, the nearest first."""
    frontier, left = {TARGET}, list(formula)
    while touching := [triple for triple in left if triple[0] in frontier or triple[2] in frontier]:
        yield touching
        frontier = {node for node in nodes_of(touching) if not is_constant(node)}
        left = [triple for triple in left if triple not in touching]


def depth(formula: Sequence[Triple]) -> int:
    """The number of layers of a tree of projections: the triples on the longest way from the target to a leaf."""
    return sum(1 for _ in layers(formula))


def validate(formula: Sequence[Sequence[object]], constants_connect: bool = False) -> list[Problem]:
    """Everything wrong with `formula`, as read from anywhere; an empty list where it is well formed.

    Constants connect nothing: two triples that share only a constant are not connected by it, and what hangs on it alone is no part of
    a projection of the target. `constants_connect` takes the released rows' wider view, a graph in which constants are nodes like others.
    """
    if not formula:
        return [Problem(FormulaDefect.EMPTY, None, "the formula has no triple")]
    problems = [problem for number, triple in enumerate(formula) for problem in _check_triple(number, triple)]
    if any(problem.defect is FormulaDefect.ARITY for problem in problems):
        return problems
    triples: list[Triple] = [(str(triple[0]), str(triple[1]), str(triple[2])) for triple in formula]
    if not any(TARGET in (triple[0], triple[2]) for triple in triples):
        return [*problems, Problem(FormulaDefect.TARGET, None, f"no triple has the target, which is written {TARGET!r}")]
    return problems + _check_connection(triples, constants_connect)


def _check_triple(number: int, triple: Sequence[object]) -> list[Problem]:
    if isinstance(triple, str) or len(triple) != 3 or not all(isinstance(part, str) for part in triple):
        return [Problem(FormulaDefect.ARITY, number, f"{triple!r} is not three texts")]
    problems = [
        Problem(FormulaDefect.PREFIX, number, f"{node!r} is no variable (V@…), constant (C@…) or target (?)")
        for node in (str(triple[0]), str(triple[2]))
        if not _is_node(node)
    ]
    if not str(triple[1]).strip():
        problems.append(Problem(FormulaDefect.RELATION, number, "the relation has no name"))
    return problems


def _is_node(node: str) -> bool:
    if node == TARGET:
        return True
    if node.startswith(VARIABLE):
        return bool(node.removeprefix(VARIABLE).strip())
    return is_constant(node) and all(member.strip() for member in members(node))


def _check_connection(triples: Sequence[Triple], constants_connect: bool) -> list[Problem]:
    reached = {TARGET}
    left = dict(enumerate(triples))
    while touching := {number: triple for number, triple in left.items() if triple[0] in reached or triple[2] in reached}:
        ends = [node for triple in touching.values() for node in (triple[0], triple[2])]
        reached.update(node for node in ends if constants_connect or not is_constant(node))
        left = {number: triple for number, triple in left.items() if number not in touching}
    return [Problem(FormulaDefect.DISCONNECTED, number, f"{triple!r} has no way to the target") for number, triple in left.items()]


def canonical(formula: Iterable[Triple]) -> tuple[Triple, ...]:
    """The one form of all formulas that differ only in the names of variables, the order of triples, doubled triples and direction.

    A knowledge projection holds in both directions, so a triple and its reverse say the same. Unknowns are told apart by colour
    refinement; where it leaves several alike, each is tried as the first, and the least outcome counts. Fixing one parts the rest
    into components that are named one by one, so that branches that are alike cost no more than others.
    """
    triples = {(min(s, o), r, max(s, o)) for s, r, o in (_with_sorted_members(triple) for triple in formula)}
    names: dict[str, str] = {TARGET: TARGET}
    for _, order in sorted(_certify(part, triples, {TARGET: 0}) for part in _components(triples, {TARGET})):
        for node in order:
            names[node] = f"{VARIABLE}{len(names)}"
    renamed = {(names.get(s, s), r, names.get(o, o)) for s, r, o in triples}
    return tuple(sorted((s, r, o) if _place(s) <= _place(o) else (o, r, s) for s, r, o in renamed))


def formula_digest(formula: Iterable[Triple]) -> str:
    """The digest of the canonical form: equal for formulas that say the same in other names and another order."""
    return digest(canonical(formula))


def _with_sorted_members(triple: Triple) -> Triple:
    subject, relation, value = triple
    return (
        constant(*set(members(subject))) if is_constant(subject) else subject,
        relation,
        constant(*set(members(value))) if is_constant(value) else value,
    )


def _place(node: str) -> tuple[int, int, str]:
    """The order of nodes in a canonical triple: the target, variables by number, constants."""
    if node == TARGET:
        return 0, 0, ""
    return (2, 0, node) if is_constant(node) else (1, int(node.removeprefix(VARIABLE)), "")


def _components(triples: Iterable[Triple], fixed: Iterable[str]) -> list[frozenset[str]]:
    """The unknowns that are not fixed, in groups that triples connect."""
    groups: list[set[str]] = []
    for subject, _, value in triples:
        joined = {node for node in (subject, value) if not is_constant(node) and node not in fixed}
        if joined:
            touched = [group for group in groups if group & joined]
            groups = [group for group in groups if not group & joined] + [joined.union(*touched)]
    return [frozenset(group) for group in groups]


def _certify(part: frozenset[str], triples: set[Triple], fixed: dict[str, int]) -> tuple[str, list[str]]:
    """A text that is equal for equal components and for no others, and the order in which its unknowns were fixed for it."""
    mine = {triple for triple in triples if triple[0] in part or triple[2] in part}
    cells: dict[int, list[str]] = {}
    for node, colour in _refine(part, mine, fixed).items():
        cells.setdefault(colour, []).append(node)
    _, cell = min(cells.items(), key=lambda item: (len(item[1]), item[0]))
    return min(_fix(node, mine, fixed) for node in sorted(cell))


def _fix(node: str, triples: set[Triple], fixed: dict[str, int]) -> tuple[str, list[str]]:
    """The certificate of a component whose first unknown is `node`."""
    known = fixed | {node: len(fixed)}
    ends = sorted(_edge(node, triple, known, {}) for triple in triples if node in (triple[0], triple[2]))
    below = sorted(_certify(rest, triples, known) for rest in _components(triples, known))
    return json.dumps([ends, [text for text, _ in below]]), [node, *(name for _, order in below for name in order)]


def _refine(part: frozenset[str], triples: set[Triple], fixed: dict[str, int]) -> dict[str, int]:
    """Colours of the unknowns: two have different ones where their triples or their neighbours' differ (1-dimensional Weisfeiler-Leman)."""
    colours = dict.fromkeys(part, 0)
    while True:
        signatures = {
            node: json.dumps([colours[node], sorted(_edge(node, t, fixed, colours) for t in triples if node in (t[0], t[2]))])
            for node in part
        }
        ranks = {signature: rank for rank, signature in enumerate(sorted(set(signatures.values())))}
        if len(ranks) == len(set(colours.values())):
            return {node: ranks[signatures[node]] for node in part}
        colours = {node: ranks[signatures[node]] for node in part}


def _edge(node: str, triple: Triple, fixed: dict[str, int], colours: dict[str, int]) -> list[str]:
    """One triple as `node` sees it: the relation, and what is known of the other end."""
    other = triple[2] if triple[0] == node else triple[0]
    if is_constant(other):
        return [triple[1], "constant", other]
    if other == node:
        return [triple[1], "itself", ""]
    return [triple[1], "fixed", str(fixed[other])] if other in fixed else [triple[1], "free", str(colours.get(other, ""))]
