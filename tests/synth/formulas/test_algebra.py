"""The algebra: what expressions denote, and that triples and expressions turn into each other."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.formulas.projections import evaluate, solve
from synth.formulas.triples import (
    Constant,
    Expression,
    Intersection,
    MalformedFormula,
    Projection,
    Union,
    Variable,
    canonical,
    fold,
    from_triples,
    to_triples,
    validate,
)
from synth.graph.knowledge_graph import KnowledgeGraph
from tests.synth.formulas.test_projections import ENTITIES, facts, formulas
from warehouse.records import Fact, Triple

constants = st.builds(Constant, st.lists(st.sampled_from(ENTITIES), min_size=1, max_size=2, unique=True).map(tuple))
projections = st.builds(Projection, st.sampled_from("rs"), constants, st.booleans())


def expressions() -> st.SearchStrategy[Expression]:
    """Trees without variables, of all kinds of nodes."""
    return st.recursive(constants | projections, _wider, max_leaves=6)


def _wider(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    parts = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.builds(Union, parts) | st.builds(Intersection, parts) | st.builds(Projection, st.sampled_from("rs"), inner, st.booleans())


def denotation(known: list[Fact], expression: Expression) -> set[str]:
    """What the definitions of the paper say, entity by entity."""
    match expression:
        case Constant(names):
            return set(names)
        case Projection(relation, source):
            pairs = {(f.subject, f.object) for f in known if f.relation == relation}
            inner = denotation(known, source)
            return {u for u, v in product(ENTITIES, ENTITIES) if v in inner and ((u, v) in pairs or (v, u) in pairs)}
        case Union(parts):
            return {u for u in ENTITIES if any(u in denotation(known, part) for part in parts)}
        case Intersection(parts):
            return {u for u in ENTITIES if all(u in denotation(known, part) for part in parts)}
        case Variable():
            raise AssertionError("no variables are drawn")


@settings(max_examples=150, deadline=None)
@given(facts, expressions())
@pytest.mark.slow
def test_an_expression_denotes_what_the_definitions_say(known: list[Fact], expression: Expression) -> None:
    graph = KnowledgeGraph(known)
    assert evaluate(graph, expression) == denotation(known, expression)
    assert evaluate(graph, fold(expression)) == denotation(known, expression)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(facts, expressions())
def test_a_conjunction_becomes_triples_with_the_same_answers(known: list[Fact], expression: Expression) -> None:
    try:
        formula = to_triples(expression)
    except MalformedFormula:
        assume(False)
    assert solve(KnowledgeGraph(known), formula) == denotation(known, expression)


@settings(max_examples=150, deadline=None)
@given(formulas)
@pytest.mark.slow
def test_triples_come_back_from_their_expression(formula: list[Triple]) -> None:
    assume(not validate(formula))
    again = to_triples(from_triples(formula))
    assert canonical(again) == canonical(formula)
    assert set(again) <= set(formula)


def test_a_variable_that_occurs_twice_is_one_entity() -> None:
    known = [Fact("t", "r", "x"), Fact("x", "s", "t"), Fact("u", "r", "x"), Fact("u", "r", "y"), Fact("z", "s", "u"), Fact("w", "s", "u")]
    graph = KnowledgeGraph(known)
    circle = Intersection((Projection("r", Variable("V@X", Projection("s", Constant(("t", "u"))))), Projection("s", Variable("V@X"))))
    assert evaluate(graph, circle) == {"t"}
