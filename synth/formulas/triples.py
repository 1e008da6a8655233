"""Question formulas: triples of variables, constants and the target, their defects, canonical form and algebra.

A formula is a conjunction of knowledge projections (WebShaper, arXiv 2507.15061, section 3). A node is a variable `V@name`, a constant
`C@text`, or the target `?`. A union is one merged constant, members joined by " | ": `C@1990 | 1991`.

As an expression a formula denotes a set: constants, the knowledge projection R(V), unions, intersections, and by nesting the recursion T =
R1(T1) ∩ … ∩ Rk(Tk). A variable names the set that defines it; repeated, it denotes the same entity, which expresses cycles.
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
    """A formula with a defect, or an expression without a formula."""


class FormulaDefect(StrEnum):
    EMPTY = "empty"
    ARITY = "arity"
    PREFIX = "prefix"
    RELATION = "relation"
    TARGET = "target"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect, the index of its triple (None: the whole formula), and an explanation."""

    defect: FormulaDefect
    triple: int | None
    detail: str


def constant(*members: str) -> str:
    """Constant of one text, or of several sorted ones as a union."""
    return CONSTANT + UNION.join(sorted(members))


def members(node: str) -> tuple[str, ...]:
    return tuple(node.removeprefix(CONSTANT).split(UNION))


def is_constant(node: str) -> bool:
    return node.startswith(CONSTANT)


def nodes_of(formula: Iterable[Triple]) -> Iterator[str]:
    return (node for subject, _, value in formula for node in (subject, value))


def unknowns(formula: Iterable[Triple]) -> list[str]:
    """Variables and target in order of occurrence."""
    return list(dict.fromkeys(node for node in nodes_of(formula) if not is_constant(node)))


def count_constants(formula: Iterable[Triple]) -> int:
    return sum(map(is_constant, nodes_of(formula)))


def layers(formula: Sequence[Triple]) -> Iterator[list[Triple]]:
    """Triples of a tree by distance from the target, nearest first."""
    frontier, left = {TARGET}, list(formula)
    while touching := [triple for triple in left if triple[0] in frontier or triple[2] in frontier]:
        yield touching
        frontier = {node for node in nodes_of(touching) if not is_constant(node)}
        left = [triple for triple in left if triple not in touching]


def depth(formula: Sequence[Triple]) -> int:
    """Number of layers: triples on the longest path from the target to a leaf."""
    return sum(1 for _ in layers(formula))


def validate(formula: Sequence[Sequence[object]], constants_connect: bool = False) -> list[Problem]:
    """All defects of `formula`; empty if it is well-formed.

    Triples that share only a constant are disconnected, unless `constants_connect` (the released rows' rule).
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
    """Canonical form, equal for formulas that differ only in variable names, order, duplicates and direction of triples.

    Unknowns are distinguished by colour refinement. Where several remain alike, each is fixed in turn and the smallest result wins; fixing
    one splits the rest into components that are named separately, which keeps similar branches cheap.
    """
    triples = {(min(s, o), r, max(s, o)) for s, r, o in (_with_sorted_members(triple) for triple in formula)}
    names: dict[str, str] = {TARGET: TARGET}
    for _, order in sorted(_certify(part, triples, {TARGET: 0}) for part in _components(triples, {TARGET})):
        for node in order:
            names[node] = f"{VARIABLE}{len(names)}"
    renamed = {(names.get(s, s), r, names.get(o, o)) for s, r, o in triples}
    return tuple(sorted((s, r, o) if _place(s) <= _place(o) else (o, r, s) for s, r, o in renamed))


def formula_digest(formula: Iterable[Triple]) -> str:
    return digest(canonical(formula))


def _with_sorted_members(triple: Triple) -> Triple:
    subject, relation, value = triple
    return (
        constant(*set(members(subject))) if is_constant(subject) else subject,
        relation,
        constant(*set(members(value))) if is_constant(value) else value,
    )


def _place(node: str) -> tuple[int, int, str]:
    if node == TARGET:
        return 0, 0, ""
    return (2, 0, node) if is_constant(node) else (1, int(node.removeprefix(VARIABLE)), "")


def _components(triples: Iterable[Triple], fixed: Iterable[str]) -> list[frozenset[str]]:
    groups: list[set[str]] = []
    for subject, _, value in triples:
        joined = {node for node in (subject, value) if not is_constant(node) and node not in fixed}
        if joined:
            touched = [group for group in groups if group & joined]
            groups = [group for group in groups if not group & joined] + [joined.union(*touched)]
    return [frozenset(group) for group in groups]


def _certify(part: frozenset[str], triples: set[Triple], fixed: dict[str, int]) -> tuple[str, list[str]]:
    """Certificate equal exactly for isomorphic components, and the order in which it fixes their unknowns."""
    mine = {triple for triple in triples if triple[0] in part or triple[2] in part}
    cells: dict[int, list[str]] = {}
    for node, colour in _refine(part, mine, fixed).items():
        cells.setdefault(colour, []).append(node)
    _, cell = min(cells.items(), key=lambda item: (len(item[1]), item[0]))
    return min(_fix(node, mine, fixed) for node in sorted(cell))


def _fix(node: str, triples: set[Triple], fixed: dict[str, int]) -> tuple[str, list[str]]:
    known = fixed | {node: len(fixed)}
    ends = sorted(_edge(node, triple, known, {}) for triple in triples if node in (triple[0], triple[2]))
    below = sorted(_certify(rest, triples, known) for rest in _components(triples, known))
    return json.dumps([ends, [text for text, _ in below]]), [node, *(name for _, order in below for name in order)]


def _refine(part: frozenset[str], triples: set[Triple], fixed: dict[str, int]) -> dict[str, int]:
    """Colours of the unknowns (1-dimensional Weisfeiler-Leman)."""
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
    other = triple[2] if triple[0] == node else triple[0]
    if is_constant(other):
        return [triple[1], "constant", other]
    if other == node:
        return [triple[1], "itself", ""]
    return [triple[1], "fixed", str(fixed[other])] if other in fixed else [triple[1], "free", str(colours.get(other, ""))]


@dataclass(frozen=True, slots=True)
class Constant:
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """An unknown: the set that `definition` denotes; without one, any entity or the same-named variable elsewhere."""

    name: str
    definition: Expression | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """R(V) = { u | some v in V with (u, v) in R or (v, u) in R }; `forward` if the triple is written with the source as subject."""

    relation: str
    source: Expression
    forward: bool = True


@dataclass(frozen=True, slots=True)
class Union:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Intersection:
    parts: tuple[Expression, ...]


Expression = Constant | Variable | Projection | Union | Intersection

Tree = dict[str, list[tuple[Triple, bool]]]
"""Triples below each unknown, each with a flag as described in `spread`."""


def has_circle(expression: Expression) -> bool:
    """Whether a variable is repeated, or the target occurs in its own definition."""
    names = [node.name for node in _nodes(expression) if isinstance(node, Variable)]
    return len(names) != len(set(names)) or TARGET in names


def _nodes(expression: Expression) -> Iterator[Expression]:
    yield expression
    match expression:
        case Variable(_, definition) if definition is not None:
            yield from _nodes(definition)
        case Projection(_, source):
            yield from _nodes(source)
        case Union(parts) | Intersection(parts):
            for part in parts:
                yield from _nodes(part)


def from_triples(formula: Sequence[Triple]) -> Expression:
    """Expression of a formula's target; an unknown is defined where a breadth-first walk first meets it.

    Raises:
        MalformedFormula: `validate` finds a problem.
    """
    if problems := validate(formula):
        raise MalformedFormula(problems[0].detail)
    return _define(TARGET, spread(formula))


def spread(formula: Sequence[Triple]) -> Tree:
    """Triples below each unknown, breadth first from the target; flag True if the other end is an unknown first met there."""
    below: Tree = {}
    placed, taken = [TARGET], set[int]()
    for node in placed:
        below[node] = []
        for number, triple in enumerate(formula):
            if number in taken or node not in (triple[0], triple[2]):
                continue
            taken.add(number)
            other = triple[2] if triple[0] == node else triple[0]
            is_new = not is_constant(other) and other not in placed
            below[node].append((triple, is_new))
            if is_new:
                placed.append(other)
    return below


def definitions(formula: Sequence[Triple]) -> dict[str, Expression]:
    """Expression below each unknown; a superset if cycles are cut."""
    below = spread(formula)
    return {node: _define(node, below) for node, triples in below.items() if triples}


def _define(node: str, below: Tree) -> Expression:
    parts = tuple(_project(node, triple, is_new, below) for triple, is_new in below[node])
    return parts[0] if len(parts) == 1 else Intersection(parts)


def _project(node: str, triple: Triple, is_new: bool, below: Tree) -> Projection:
    subject, relation, value = triple
    other = value if subject == node else subject
    if is_constant(other):
        source: Expression = Constant(members(other))
    else:
        source = Variable(other, _define(other, below) if is_new and below[other] else None)
    return Projection(relation, source, forward=value == node)


def to_triples(expression: Expression) -> tuple[Triple, ...]:
    """Formula of an expression, nearest triples first; unions are folded into one constant, R(S1) ∪ R(S2) = R(S1 ∪ S2).

    Raises:
        MalformedFormula: the expression is a bare constant or contains a union that cannot be folded.
    """
    return tuple(_triples(TARGET, fold(expression), _fresh_names(expression)))


def _fresh_names(expression: Expression) -> Iterator[str]:
    used = {node.name for node in _nodes(expression) if isinstance(node, Variable)}
    number = 0
    while True:
        number += 1
        if f"{VARIABLE}X{number}" not in used:
            yield f"{VARIABLE}X{number}"


def _triples(node: str, expression: Expression, names: Iterator[str]) -> Iterator[Triple]:
    match expression:
        case Intersection(parts):
            for part in parts:
                yield from _triples(node, part, names)
        case Projection(relation, source, forward):
            other, definition = _name(source, names)
            yield (other, relation, node) if forward else (node, relation, other)
            if definition is not None:
                yield from _triples(other, definition, names)
        case _:
            raise MalformedFormula(f"{expression} is no conjunction of projections and has no triples")


def _name(source: Expression, names: Iterator[str]) -> tuple[str, Expression | None]:
    match source:
        case Constant(texts):
            return constant(*texts), None
        case Variable(name, definition):
            return name, definition
    return next(names), source


def fold(expression: Expression) -> Expression:
    """Equivalent expression with fewer unions and flat nesting."""
    match expression:
        case Variable(name, definition):
            return Variable(name, None if definition is None else fold(definition))
        case Projection(relation, source, forward):
            return Projection(relation, fold(source), forward)
        case Intersection(parts):
            flat = list(_flatten(Intersection, (fold(part) for part in parts)))
            return flat[0] if len(flat) == 1 else Intersection(tuple(dict.fromkeys(flat)))
        case Union(parts):
            return _fold_union(list(_flatten(Union, (fold(part) for part in parts))))
    return expression


def _flatten(kind: type[Union] | type[Intersection], parts: Iterable[Expression]) -> Iterator[Expression]:
    for part in parts:
        if isinstance(part, kind):
            yield from part.parts
        else:
            yield part


def _fold_union(parts: list[Expression]) -> Expression:
    constants = [part for part in parts if isinstance(part, Constant)]
    merged: list[Expression] = [part for part in parts if not isinstance(part, Constant | Projection)]
    if constants:
        merged.append(Constant(tuple(sorted({name for part in constants for name in part.members}))))
    sources: dict[tuple[str, bool], list[Expression]] = {}
    for part in parts:
        if isinstance(part, Projection):
            sources.setdefault((part.relation, part.forward), []).append(part.source)
    merged += [Projection(relation, fold(Union(tuple(each))), forward) for (relation, forward), each in sources.items()]
    return merged[0] if len(merged) == 1 else Union(tuple(merged))
