"""Growing questions: the answer never changes, and each structure has the shape that it is said to have."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from synth.formulas.projections import solve, witness
from synth.formulas.proofs import without
from synth.formulas.triples import TARGET, depth, formula_digest, is_constant, members, validate
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.expansion import Definer, GrownQuestion, GrowthSpec, Structure, essence, grow
from synth.questions.paths import Retrieve
from warehouse.records import Document, Fact

ALL = list(Structure)


def draw(graph: KnowledgeGraph, growth: GrowthSpec, count: int = 40, seed: int = 1) -> list[GrownQuestion]:
    return list(islice(grow(Definer(graph), growth, random.Random(seed), count), count))


def beside_target(grown: GrownQuestion) -> list[str]:
    return [node for s, _, o in grown.formula if TARGET in (s, o) for node in (s, o) if is_constant(node)]


@pytest.mark.parametrize("structure", ALL)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_grown_question_keeps_its_one_answer(graph: KnowledgeGraph, structure: Structure, layers: int) -> None:
    questions = draw(graph, GrowthSpec(structure, layers, intersections=0.6, unions=0.2))
    assert len(questions) == 40
    for grown in questions:
        assert validate(essence(grown.formula)) == []
        assert solve(graph, essence(grown.formula)) == {grown.answer}
        assert grown.values[TARGET] == grown.answer
        assert witness(graph, essence(grown.formula), grown.answer) is not None
        named = [text for s, _, o in grown.formula for node in (s, o) if is_constant(node) for text in members(node)]
        assert not set(named) & set(grown.values.values()), "no unknown is given away"
        if structure is Structure.LAYERWISE:
            assert depth(grown.formula) == layers and essence(grown.formula) == grown.formula
            assert bool(beside_target(grown)) == (layers == 1), "each layer takes the place of every constant"


@pytest.mark.parametrize("structure", [Structure.LAYERWISE, Structure.SEQUENTIAL])
def test_without_any_constraint_there_are_more_answers(graph: KnowledgeGraph, structure: Structure) -> None:
    for grown in draw(graph, GrowthSpec(structure, 3, intersections=0.6)):
        for number in range(len(grown.formula)):
            rest = without(grown.formula, number)
            assert not rest or solve(graph, rest) > {grown.answer}
    unchecked = draw(graph, GrowthSpec(structure, 3, intersections=0.6, checked=False))
    assert any(solve(graph, without(g.formula, n)) == {g.answer} for g in unchecked for n in range(len(g.formula)) if without(g.formula, n))


def test_facts_that_no_document_states_and_entities_that_are_not_allowed_are_not_used(graph: KnowledgeGraph) -> None:
    allowed = set(random.Random(3).sample(list(graph.subjects), 250))
    definer = Definer(graph, allowed.__contains__)
    for grown in islice(grow(definer, GrowthSpec(Structure.LAYERWISE, 2, 0.5), random.Random(1), 20), 20):
        named = [text for s, _, o in grown.formula for node in (s, o) if is_constant(node) for text in members(node)]
        assert set(grown.values.values()) <= allowed
        assert all(name in allowed or not graph.about(name) for name in named)
    unstated = KnowledgeGraph([Fact("a", "r", "b"), Fact("a", "s", "c", ("d",))], [Document("d", "a", "a: s c.", "x")])
    assert {triple[1] for grown in draw(unstated, GrowthSpec(Structure.LAYERWISE, 1)) for triple in grown.formula} == {"s"}


@pytest.mark.parametrize("structure", ["layerwise", "random", "sequential"])
def test_grown_questions_are_tasks_like_others(graph: KnowledgeGraph, retrieve: Retrieve, structure: str) -> None:
    config = QuestionConfig(counts={1: 5, 2: 15}, structure=structure, intersections=0.5)  # type: ignore[arg-type]
    tasks, _ = build_questions(graph, config, 1, retrieve)
    assert tasks == build_questions(graph, config, 1, retrieve)[0]
    assert len(tasks) == len({task.key for task in tasks}) == len({formula_digest(task.formula) for task in tasks}) == 20
    for task in tasks:
        assert solve(graph, essence(task.formula)) == set(task.answers)
        assert task.provenance["shape"] == structure
        assert 1 <= task.hops < len(task.provenance["path"]) + 1
        assert task.answers[0] not in task.question
        assert task.proofs["answers"] == list(task.answers)
        assert not task.proofs["redundant"] and not task.proofs["constant_edges"] and not task.proofs["unsupported"]
    with pytest.raises(ValueError, match="retrieve"):
        build_questions(graph, config, 1)


def test_names_that_read_as_unions_stay_out_of_constants() -> None:
    graph = KnowledgeGraph([Fact("Dawn", "cast", "Ann | Bob", ("d",)), Fact("Dawn", "year", "1950", ("d",))])
    drawn = draw(graph, GrowthSpec(Structure.LAYERWISE, 1))
    assert {grown.answer for grown in drawn} >= {"Dawn", "Ann | Bob"}
    assert not any("|" in node for grown in drawn for triple in grown.formula for node in triple)
