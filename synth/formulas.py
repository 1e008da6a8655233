"""The form of a question's formula: triples of variables, constants and the target, and what can be wrong with them.

A formula is a conjunction of knowledge projections (WebShaper, arXiv 2507.15061). A node is a variable `V@name`, a constant `C@text`, or
the target, exactly `?`; every `?` in a formula is the same target. A union is folded into one merged constant whose members
are joined by " | ": `C@1990 | 1991`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from warehouse.records import Triple

TARGET = "?"
VARIABLE = "V@"
CONSTANT = "C@"
UNION = " | "


class Defect(StrEnum):
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

    defect: Defect
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


def unknowns(formula: Iterable[Triple]) -> list[str]:
    """The variables and the target, in the order in which they first occur."""
    return list(dict.fromkeys(node for triple in formula for node in (triple[0], triple[2]) if not is_constant(node)))


def depth(formula: Sequence[Triple]) -> int:
    """The number of layers of a tree of projections: the triples on the longest way from the target to a leaf."""
    layers, frontier, left = 0, {TARGET}, list(formula)
    while touching := [triple for triple in left if triple[0] in frontier or triple[2] in frontier]:
        layers += 1
        frontier = {node for triple in touching for node in (triple[0], triple[2]) if not is_constant(node)}
        left = [triple for triple in left if triple not in touching]
    return layers


def validate(formula: Sequence[Sequence[object]]) -> list[Problem]:
    """Everything wrong with `formula`, as read from anywhere; an empty list where it is well formed.

    Constants connect nothing: two triples that share only a constant are not connected by it.
    """
    if not formula:
        return [Problem(Defect.EMPTY, None, "the formula has no triple")]
    problems = [problem for number, triple in enumerate(formula) for problem in _check_triple(number, triple)]
    if any(problem.defect is Defect.ARITY for problem in problems):
        return problems
    triples: list[Triple] = [(str(triple[0]), str(triple[1]), str(triple[2])) for triple in formula]
    if not any(TARGET in (triple[0], triple[2]) for triple in triples):
        return [*problems, Problem(Defect.TARGET, None, f"no triple has the target, which is written {TARGET!r}")]
    return problems + _check_connection(triples)


def _check_triple(number: int, triple: Sequence[object]) -> list[Problem]:
    if isinstance(triple, str) or len(triple) != 3 or not all(isinstance(part, str) for part in triple):
        return [Problem(Defect.ARITY, number, f"{triple!r} is not three texts")]
    problems = [
        Problem(Defect.PREFIX, number, f"{node!r} is no variable (V@…), constant (C@…) or target (?)")
        for node in (str(triple[0]), str(triple[2]))
        if not _is_node(node)
    ]
    if not str(triple[1]).strip():
        problems.append(Problem(Defect.RELATION, number, "the relation has no name"))
    return problems


def _is_node(node: str) -> bool:
    if node == TARGET:
        return True
    if node.startswith(VARIABLE):
        return bool(node.removeprefix(VARIABLE).strip())
    return is_constant(node) and all(member.strip() for member in members(node))


def _check_connection(triples: Sequence[Triple]) -> list[Problem]:
    reached = {TARGET}
    left = dict(enumerate(triples))
    while touching := {number: triple for number, triple in left.items() if triple[0] in reached or triple[2] in reached}:
        reached.update(node for triple in touching.values() for node in (triple[0], triple[2]) if not is_constant(node))
        left = {number: triple for number, triple in left.items() if number not in touching}
    return [Problem(Defect.DISCONNECTED, number, f"{triple!r} has no way to the target") for number, triple in left.items()]
