"""The algebra of questions as typed expressions (WebShaper, arXiv 2507.15061, section 3); `synth.formulas.projections` evaluates them.

An expression denotes a set of entities: constants, the knowledge projection R(V) of a set, unions, intersections, and by nesting the
recursion T = R1(T1) ∩ … ∩ Rk(Tk). A variable names the set that it is defined by, or, used again, the same entity: that is how a
formula with a circle is written. The stored form is a conjunction of triples; both ways between the two are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from synth.formulas.triples import TARGET, VARIABLE, MalformedFormula, constant, is_constant, members, validate
from warehouse.records import Triple


@dataclass(frozen=True, slots=True)
class Constant:
    """The entities that are named; several are a union."""

    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """An unknown by its name: the set that `definition` denotes; without one any entity, or the one that the name has elsewhere."""

    name: str
    definition: Expression | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """R(V) = { u | some v in V with (u, v) in R or (v, u) in R }: what `relation` joins with a member of `source`.

    `forward` says how a triple is written, with the source as its subject; what is denoted is the same.
    """

    relation: str
    source: Expression
    forward: bool = True


@dataclass(frozen=True, slots=True)
class Union:
    """What any of the parts denotes."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Intersection:
    """What all of the parts denote."""

    parts: tuple[Expression, ...]


Expression = Constant | Variable | Projection | Union | Intersection

Tree = dict[str, list[tuple[Triple, bool]]]
"""For each unknown the triples below it, each with whether the unknown at its other end is first met there; see `spread`."""


def has_circle(expression: Expression) -> bool:
    """Whether a variable stands twice, or the target inside its own definition: no nesting alone says that, but an equality."""
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
    """The expression of the target of `formula`.

    Unknowns are defined where the way from the target first meets them, breadth first; a triple that closes a circle uses their name.

    Raises:
        MalformedFormula: where `validate` finds a problem.
    """
    if problems := validate(formula):
        raise MalformedFormula(problems[0].detail)
    return _define(TARGET, spread(formula))


def spread(formula: Sequence[Triple]) -> Tree:
    """For each unknown, breadth first from the target, the triples that hang below it.

    Each with whether the unknown at its other end is first met there; else that end is a constant, or the triple closes a circle.
    """
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
    """What hangs below each unknown of a formula, as an expression; where a circle is, with its equality left out: a superset."""
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
    """The formula whose target is what `expression` denotes, the triples nearest to the target first on each way.

    Unions are folded into one constant, as R(S1) ∪ R(S2) = R(S1 ∪ S2) allows; an unknown without a name gets one.

    Raises:
        MalformedFormula: the expression is no conjunction of triples: a constant alone, or a union that does not fold.
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
    """The node of a projection's source, and its definition where it is still to be written."""
    match source:
        case Constant(texts):
            return constant(*texts), None
        case Variable(name, definition):
            return name, definition
    return next(names), source


def fold(expression: Expression) -> Expression:
    """The same set with fewer unions: R(S1) ∪ R(S2) becomes R(S1 ∪ S2), a union of constants one constant; nests are made flat."""
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
