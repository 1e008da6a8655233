"""Questions: proven, answerable, deep as asked, the same every time, and apart between splits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from synth.demonstrations.oracle import path_of
from synth.formulas.projections import solve
from synth.formulas.triples import validate
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions
from synth.questions.decontamination import split_of
from synth.questions.paths import Retrieve, find_document
from synth.worlds.world import WorldConfig, generate_world
from warehouse.records import Document, Fact, Failure, Task

MIXED = QuestionConfig(counts={1: 40, 2: 40, 3: 40, 4: 40, 5: 20, 6: 20}, intersections=0.3, unions=0.2, identify=0.3)


@pytest.fixture(scope="module")
def tasks(graph: KnowledgeGraph, retrieve: Retrieve) -> list[Task]:
    return build_questions(graph, MIXED, 1, retrieve)[0]


def test_every_question_is_proven_and_every_step_is_found(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> None:
    for task in tasks:
        assert validate(task.formula) == []
        assert solve(graph, task.formula) == set(task.answers)
        assert len(task.answers) == 1
        path = path_of(graph, task)
        assert path is not None
        assert len(path) == task.hops
        for hop in path:
            document = find_document(graph, hop, retrieve)
            assert document is not None
            assert hop.value in document.text
        visited = [hop.entity for hop in path] + ([path[-1].value] if path[-1].relation else [])
        assert len(set(visited)) == len(visited)
        assert task.answers[0] not in task.question


@pytest.mark.slow
def test_tasks_do_not_depend_on_the_hash_seed() -> None:
    processes = [_start_under(hash_seed) for hash_seed in ("1", "2")]
    first, second = (process.communicate(timeout=550)[0] for process in processes)
    assert first == second != ""


def _start_under(hash_seed: str) -> subprocess.Popen[str]:
    """`print_digests.py` in a process of its own, under a hash seed."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[3])}
    script = Path(__file__).parents[1] / "print_digests.py"
    return subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_more_than_can_be_had_gives_what_there_is() -> None:
    small = generate_world(WorldConfig(entities=100), "train", seed=1)
    tasks, failures = build_questions(KnowledgeGraph.of(small), QuestionConfig(counts={1: 1_000}), 1)
    assert len(tasks) == len(small.facts)
    assert [failure.kind for failure in failures] == [RejectionReason.SHORTFALL]
    assert failures[0].item["missing"] == 1_000 - len(tasks)


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


def test_splits_of_one_graph_share_no_answer_and_no_entity_on_the_way(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    named: dict[str, set[str]] = {}
    for split in ("train", "heldout"):
        config = QuestionConfig(counts={1: 50, 2: 50, 3: 20})
        tasks, _ = build_questions(graph, config, 1, retrieve, split=split, allowed=_only(split))
        assert len(tasks) > 60
        assert {task.split for task in tasks} == {split}
        named[split] = {name for task in tasks for name in (*task.provenance["path"], *task.answers)}
    assert not named["train"] & named["heldout"]


def _only(split: str) -> Callable[[str], bool]:
    return lambda entity: split_of(entity, 0.4) == split


def test_a_graph_that_cannot_give_what_is_asked_does_not_go_over_to_the_other_split() -> None:
    towns = [f"town {number}" for number in range(30)]
    documents = [Document(town, town, f"{town}: river {town} water.", "x") for town in towns]
    small = KnowledgeGraph([Fact(town, "river", f"{town} water", (town,)) for town in towns], documents)
    starts = {}
    for split in ("train", "heldout"):
        tasks, failures = build_questions(small, QuestionConfig(counts={1: 40}), 1, split=split, allowed=_only(split))
        assert RejectionReason.SHORTFALL in {failure.kind for failure in failures}
        starts[split] = {name for task in tasks for name in task.provenance["path"]}
        assert starts[split] and all(map(_only(split), starts[split]))
    assert not starts["train"] & starts["heldout"]
