"""Formulas: what is malformed, that solving gives what brute force proves, and the canonical form."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.formulas.projections import solve, witness
from synth.formulas.proofs import is_needed, without
from synth.formulas.triples import TARGET, FormulaDefect, MalformedFormula, canonical, formula_digest, members, unknowns, validate
from synth.graph.knowledge_graph import KnowledgeGraph
from tests.clock import processor_seconds
from warehouse.records import Fact, Triple

ENTITIES = "abcde"
NODES = ["?", "V@X", "V@Y", "C@a", "C@b", "C@c | d"]

facts = st.lists(st.builds(Fact, st.sampled_from(ENTITIES), st.sampled_from("rs"), st.sampled_from(ENTITIES)), max_size=12)
formulas = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from("rs"), st.sampled_from(NODES)), min_size=1, max_size=4)


def brute_force(known: list[Fact], formula: list[Triple]) -> set[str]:
    """Answers by trying every value for every unknown."""
    pairs = {(f.relation, f.subject, f.object) for f in known} | {(f.relation, f.object, f.subject) for f in known}
    free = unknowns(formula)
    answers = set()
    for chosen in product(ENTITIES, repeat=len(free)):
        values = dict(zip(free, chosen, strict=True))
        if all(holds(pairs, triple, values) for triple in formula):
            answers.add(values["?"])
    return answers


def holds(pairs: set[tuple[str, str, str]], triple: Triple, values: dict[str, str]) -> bool:
    left, right = ((values[n],) if n in values else members(n) for n in (triple[0], triple[2]))
    return any((triple[1], a, b) in pairs for a in left for b in right)


@settings(max_examples=150, deadline=None)
@given(facts, formulas)
def test_solve_gives_exactly_what_brute_force_gives(known: list[Fact], formula: list[Triple]) -> None:
    graph = KnowledgeGraph(known)
    if validate(formula):
        with pytest.raises(MalformedFormula):
            solve(graph, formula)
        return
    answers = solve(graph, formula)
    assert answers == brute_force(known, formula)
    for place in range(len(formula)):
        rest = without(formula, place)
        assert is_needed(graph, formula, place, answers) == (not rest or brute_force(known, rest) > answers)
    for entity in ENTITIES:
        values = witness(graph, formula, entity)
        assert (values is not None) == (entity in answers)


@pytest.mark.parametrize(
    ("formula", "defect"),
    [
        ([], FormulaDefect.EMPTY),
        ([["V@X", "r"]], FormulaDefect.ARITY),
        ([["X", "r", "?"]], FormulaDefect.PREFIX),
        ([["C@a", "r", "?person"], ["C@a", "r", "?"]], FormulaDefect.PREFIX),
        ([["C@a", " ", "?"]], FormulaDefect.RELATION),
        ([["V@X", "r", "C@a"]], FormulaDefect.TARGET),
        ([["C@a", "r", "?"], ["V@X", "r", "C@b"]], FormulaDefect.DISCONNECTED),
    ],
)
def test_malformed_formulas_are_named(formula: list[list[str]], defect: FormulaDefect) -> None:
    assert defect in {problem.defect for problem in validate(formula)}


def test_a_witness_among_very_many_ways_that_lead_nowhere_is_found_at_once() -> None:
    hubs = [Fact(f"film {n}", "genre", "drama") for n in range(150)]
    years = [Fact(f"film {n}", "year", "2001" if n == 149 else str(n % 3)) for n in range(150)]
    graph = KnowledgeGraph([*hubs, *years, Fact("film 149", "star", "Amber Stone")])
    beside = (("V@a", "genre", "?"), ("V@a", "genre", "V@b"), ("V@c", "genre", "V@b"), ("V@c", "genre", "V@d"), ("V@e", "genre", "V@d"))
    formula = (*beside, ("V@a", "year", "V@f"), ("V@g", "year", "V@f"), ("V@g", "star", "C@Amber Stone"))
    began = processor_seconds()
    found = witness(graph, formula, "drama")
    assert found is not None and found["V@a"] == found["V@g"] == "film 149"
    assert processor_seconds() - began < 5


MANY_NODES = ["?", "V@X", "V@Y", "V@Z", "V@U", "C@a", "C@b"]
long_formulas = st.lists(st.tuples(st.sampled_from(MANY_NODES), st.sampled_from("rs"), st.sampled_from(MANY_NODES)), min_size=1, max_size=7)


def disguised(formula: list[Triple], rng: random.Random) -> list[Triple]:
    """The same formula in other names, another order, some triples reversed or doubled."""
    variables = [node for node in unknowns(formula) if node != TARGET]
    names = dict(zip(variables, rng.sample([f"V@N{i}" for i in range(len(variables))], len(variables)), strict=True))
    triples = [(names.get(s, s), r, names.get(o, o)) for s, r, o in formula]
    triples = [(o, r, s) if rng.random() < 0.5 else (s, r, o) for s, r, o in triples + rng.sample(triples, 1)]
    rng.shuffle(triples)
    return triples


def least(formula: list[Triple]) -> tuple[Triple, ...]:
    """A canonical form by trying every naming: slow, and plainly right."""
    variables = [node for node in unknowns(formula) if node != TARGET]
    forms = []
    for order in permutations(range(len(variables))):
        names = dict(zip(variables, (f"V@{i}" for i in order), strict=True))
        ends = [(names.get(s, s), r, names.get(o, o)) for s, r, o in formula]
        forms.append(tuple(sorted({(min(s, o), r, max(s, o)) for s, r, o in ends})))
    return min(forms)


@settings(max_examples=150, deadline=None)
@given(long_formulas, st.randoms(use_true_random=False))
@pytest.mark.slow
def test_a_disguise_changes_nothing(formula: list[Triple], rng: random.Random) -> None:
    assert canonical(formula) == canonical(disguised(formula, rng))
    assert canonical(canonical(formula)) == canonical(formula)
    assert least(list(canonical(formula))) == least(formula)


@settings(max_examples=150, deadline=None)
@given(long_formulas, long_formulas)
@pytest.mark.slow
def test_two_forms_are_equal_only_where_a_renaming_makes_them_so(one: list[Triple], other: list[Triple]) -> None:
    assert (canonical(one) == canonical(other)) == (least(one) == least(other))


def test_branches_that_are_alike_cost_little() -> None:
    formula = [t for i in range(12) for t in (("?", "r", f"V@a{i}"), (f"V@a{i}", "r", f"V@b{i}"), (f"V@b{i}", "s", "C@c"))]
    triangles = [(f"V@{a}{i}", "t", f"V@{b}{i}") for i in range(8) for a, b in ("xy", "yz", "zx")]
    formula += triangles + [("?", "u", f"V@x{i}") for i in range(8)]
    began = processor_seconds()
    assert validate(formula) == []
    assert formula_digest(formula) == formula_digest(list(reversed(formula)))
    assert processor_seconds() - began < 5
