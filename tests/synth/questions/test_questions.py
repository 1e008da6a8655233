"""Questions: proven, answerable, deep as asked, the same every time, and apart between splits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth.demonstrations.oracle import path_of
from synth.formulas.projections import solve
from synth.formulas.triples import validate
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, QuestionStructure, RejectionReason, build_questions
from synth.questions.decontamination import split_of
from synth.questions.paths import Retrieve, find_document
from synth.worlds.world import WorldConfig, generate_world
from warehouse.records import Failure, Task


def test_every_question_is_proven_and_every_step_is_found(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> None:
    for task in tasks:
        assert validate(task.formula) == []
        assert solve(graph, task.formula) == set(task.answers) and len(task.answers) == 1
        path = path_of(graph, task)
        assert path is not None and len(path) == task.hops
        for hop in path:
            document = find_document(graph, hop, retrieve)
            assert document is not None and hop.value in document.text
        visited = [hop.entity for hop in path] + ([path[-1].value] if path[-1].relation else [])
        assert len(set(visited)) == len(visited)
        assert task.answers[0] not in task.question


@pytest.mark.slow
def test_tasks_do_not_depend_on_the_hash_seed() -> None:
    root, script = Path(__file__).parents[3], Path(__file__).parents[1] / "print_digests.py"
    environments = [{**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)} for seed in ("1", "2")]
    processes = [subprocess.Popen([sys.executable, script], env=each, stdout=subprocess.PIPE, text=True) for each in environments]
    first, second = (process.communicate(timeout=550)[0] for process in processes)
    assert first == second != ""


@pytest.mark.slow
def test_more_than_can_be_had_gives_what_there_is() -> None:
    small = generate_world(WorldConfig(entities=100), "train", seed=1)
    tasks, (failure,) = build_questions(KnowledgeGraph.of(small), QuestionConfig(counts={1: 1_000}), 1)
    assert len(tasks) == len(small.facts)
    assert (failure.kind, failure.item["missing"]) == (RejectionReason.SHORTFALL, 1_000 - len(tasks))


def test_what_is_known_or_refused_is_replaced_by_another(graph: KnowledgeGraph) -> None:
    config = QuestionConfig(counts={1: 20})
    first, _ = build_questions(graph, config, 1)
    known = {task.key for task in first[:10]}
    refused = Failure("decontamination", "same_question", "it is in a suite")
    against = {task.key for task in first[10:15]}
    tasks, failures = build_questions(graph, config, 1, known=known, refuse=lambda task: refused if task.key in against else None)
    assert len(tasks) == 20
    assert {task.key for task in tasks} >= {task.key for task in first[15:]}
    assert not {task.key for task in tasks} & (known | against)
    assert failures.count(refused) == 5


@pytest.mark.parametrize(("structure", "counts"), [("paths", {1: 200, 2: 20}), ("layerwise", {1: 10, 2: 10})])
def test_splits_of_one_graph_share_no_answer_and_no_entity_on_the_way(
    graph: KnowledgeGraph, retrieve: Retrieve, structure: QuestionStructure, counts: dict[int, int]
) -> None:
    named, kinds = dict[str, set[str]](), set[str]()
    config = QuestionConfig(counts=counts, structure=structure)
    for split in ("train", "heldout"):
        allowed = lambda entity, split=split: split_of(entity, 0.4) == split  # noqa: E731
        tasks, failures = build_questions(graph, config, 1, retrieve, split=split, allowed=allowed)
        assert {task.split for task in tasks} == {split}
        kinds |= {failure.kind for failure in failures}
        named[split] = {name for task in tasks for name in (*task.provenance["path"], *task.answers)}
        assert all(map(allowed, named[split].intersection(graph.subjects)))
    assert not named["train"] & named["heldout"]
    assert structure != "paths" or RejectionReason.SHORTFALL in kinds, "and what has run out of its own does not go over"
