"""The canonical form: equal exactly where formulas differ in names, order, doubles and direction alone."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.formulas.triples import TARGET, canonical, formula_digest, unknowns, validate
from tests.clock import processor_seconds
from warehouse.records import Triple

NODES = ["?", "V@X", "V@Y", "V@Z", "V@U", "C@a", "C@b"]
formulas = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from("rs"), st.sampled_from(NODES)), min_size=1, max_size=7)


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
@given(formulas, st.randoms(use_true_random=False))
@pytest.mark.slow
def test_a_disguise_changes_nothing(formula: list[Triple], rng: random.Random) -> None:
    assert canonical(formula) == canonical(disguised(formula, rng))
    assert canonical(canonical(formula)) == canonical(formula)
    assert least(list(canonical(formula))) == least(formula)


@settings(max_examples=150, deadline=None)
@given(formulas, formulas)
@pytest.mark.slow
def test_two_forms_are_equal_only_where_a_renaming_makes_them_so(one: list[Triple], other: list[Triple]) -> None:
    assert (canonical(one) == canonical(other)) == (least(one) == least(other))


def test_close_formulas_that_refinement_alone_cannot_tell_apart() -> None:
    def ring(*names: str) -> list[Triple]:
        return [(f"V@{a}", "r", f"V@{b}") for a, b in zip(names, (*names[1:], names[0]), strict=True)]

    hub = [("?", "s", f"V@{name}") for name in "abcdef"]
    two_triangles, one_hexagon = hub + ring(*"abc") + ring(*"def"), hub + ring(*"abcdef")
    assert formula_digest(two_triangles) != formula_digest(one_hexagon)
    assert formula_digest(two_triangles) == formula_digest(hub + ring(*"ace") + ring(*"bdf"))


def test_branches_that_are_alike_cost_little() -> None:
    formula = [t for i in range(12) for t in (("?", "r", f"V@a{i}"), (f"V@a{i}", "r", f"V@b{i}"), (f"V@b{i}", "s", "C@c"))]
    triangles = [(f"V@{a}{i}", "t", f"V@{b}{i}") for i in range(8) for a, b in ("xy", "yz", "zx")]
    formula += triangles + [("?", "u", f"V@x{i}") for i in range(8)]
    began = processor_seconds()
    assert validate(formula) == []
    assert formula_digest(formula) == formula_digest(list(reversed(formula)))
    assert processor_seconds() - began < 5
