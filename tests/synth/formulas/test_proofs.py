"""Proofs of questions made by hand, and formulas as they are drawn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from synth.formulas.drawing import NodeKind, formula_tree, placed
from synth.formulas.proofs import Proofs, prove, without
from synth.formulas.triples import layers
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions, objection
from synth.questions.paths import Retrieve
from warehouse.records import Document, Fact


def _documents(*names: str) -> list[Document]:
    return [Document(name, name, f"{name}.", "x") for name in names]


@pytest.fixture
def films() -> KnowledgeGraph:
    """Ann is in three films, Bob in two of these; one fact is stated nowhere, one in a document that the corpus lacks."""
    rows = [("Dawn", "cast", "Ann"), ("Dusk", "cast", "Ann"), ("Noon", "cast", "Ann"), ("Dawn", "cast", "Bob"), ("Dusk", "cast", "Bob")]
    facts = [Fact(s, r, o, (s,)) for s, r, o in rows]
    facts += [Fact("Dawn", "year", "1950", ("Dawn",)), Fact("Dusk", "year", "1951"), Fact("Noon", "year", "1952", ("lost",))]
    return KnowledgeGraph(facts, _documents("Dawn", "Dusk", "Noon"))


def test_a_constraint_is_redundant_where_the_answers_stay_the_same_without_it(films: KnowledgeGraph) -> None:
    both = [("?", "cast", "C@Ann"), ("?", "cast", "C@Bob")]
    assert prove(films, both) == Proofs(answers=("Dawn", "Dusk"), redundant=(0,), shortcuts=(0, 1))
    assert prove(films, [*both, ("?", "year", "C@1950")]).redundant == (0, 1)
    assert prove(films, [("?", "cast", "C@Ann"), ("?", "year", "C@1950")]).redundant == (0,)


def test_the_only_constraint_of_the_target_is_needed_and_what_hangs_on_it_falls_with_it(films: KnowledgeGraph) -> None:
    assert prove(films, [("C@Noon", "cast", "?")]).redundant == ()
    assert without([("V@X", "cast", "?"), ("V@X", "year", "C@1952")], 0) == ()
    chain = [("V@X", "year", "C@1952"), ("V@X", "cast", "?")]
    assert prove(films, chain) == Proofs(answers=("Ann",), redundant=(), shortcuts=(), unsupported=(0,))


def test_facts_that_no_document_of_the_corpus_states_are_unsupported(films: KnowledgeGraph) -> None:
    assert prove(films, [("C@Dawn", "year", "?")]).unsupported == ()
    assert prove(films, [("C@Dusk", "year", "?")]).unsupported == (0,)
    assert prove(films, [("C@Noon", "year", "?")]).unsupported == (0,)


def test_a_question_is_easy_where_one_search_brings_the_document_of_the_answer(films: KnowledgeGraph) -> None:
    formula = [("C@Dawn", "year", "?")]
    assert prove(films, formula, "year of Dawn?", lambda _: films.documents["Dawn"]).easy is True
    assert prove(films, formula, "year of Dawn?", lambda _: films.documents["Dusk"]).easy is False
    assert prove(films, formula, "year of Dawn?", lambda _: None).easy is False
    assert prove(films, formula, "year of Dawn?").easy is None


def test_every_question_carries_its_proofs(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    config = QuestionConfig(counts={1: 40, 2: 40, 3: 40}, intersections=0.5, unions=0.2, identify=0.4, allowed_shortcuts=1)
    tasks, failures = build_questions(graph, config, 3, retrieve)
    assert len(tasks) == 120 and all(len(task.proofs["shortcuts"]) <= 1 for task in tasks)
    for task in tasks:
        assert task.proofs == prove(graph, task.formula, task.question, retrieve).record()
        assert task.proofs["redundant"] == task.proofs["unsupported"] == task.proofs["constant_edges"] == []
    assert {task.proofs["easy"] for task in tasks} == {True, False}
    assert {RejectionReason.REDUNDANT, RejectionReason.SHORTCUT} <= {failure.kind for failure in failures}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"redundant": (1,)}, RejectionReason.REDUNDANT),
        ({"constant_edges": (0,)}, RejectionReason.CONSTANT_EDGE),
        ({"shortcuts": (0, 1)}, RejectionReason.SHORTCUT),
        ({"unsupported": (0,)}, RejectionReason.UNSUPPORTED),
        ({"easy": True}, RejectionReason.EASY),
        ({"shortcuts": (0,), "easy": False}, None),
    ],
)
def test_a_question_is_dropped_for_what_its_proofs_show(found: dict[str, Any], kind: RejectionReason | None) -> None:
    against = objection(Proofs(("Ann",), **found), allowed_shortcuts=1, drops_easy=True)
    assert (against and against[0]) == kind


def test_every_triple_of_a_grown_question_is_drawn_in_its_layer(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    wanted = QuestionConfig(counts={2: 12, 3: 6}, structure="layerwise", intersections=0.5, allowed_shortcuts=0, easy="drop")
    tasks, failures = build_questions(graph, wanted, 5, retrieve)
    assert not any(task.proofs["shortcuts"] or task.proofs["easy"] for task in tasks)
    assert RejectionReason.EASY in {failure.kind for failure in failures}
    assert {task.layers for task in tasks} == {2, 3}
    for task in tasks:
        tree = formula_tree(task.formula)
        nodes, edges = placed(tree)
        depths = Counter(nodes[edge.far].layer for edge in edges)
        assert depths == {number: len(layer) for number, layer in enumerate(layers(task.formula), start=1)}
        assert sum(node.kind is NodeKind.CONSTANT for node in nodes) == task.constraints
        assert len({(node.x, node.y) for node in nodes}) == len(nodes)
        assert all(nodes[edge.near].x < nodes[edge.far].x for edge in edges), "layers lie from left to right"
