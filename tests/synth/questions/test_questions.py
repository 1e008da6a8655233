"""Questions: proven, answerable, deep as asked, the same every time, and apart between splits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from synth.demonstrations.oracle import path_of
from synth.formulas.projections import solve
from synth.formulas.triples import validate
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions
from synth.questions.decontamination import split_of
from synth.questions.paths import Anchor, Hop, Retrieve, find_document, formula_of, trace
from synth.worlds.world import WorldConfig, generate_world
from warehouse.records import Document, Fact, Failure, Task

MIXED = QuestionConfig(counts={1: 40, 2: 40, 3: 40, 4: 40, 5: 20, 6: 20}, intersections=0.3, unions=0.2, identify=0.3)


@pytest.fixture(scope="module")
def tasks(graph: KnowledgeGraph, retrieve: Retrieve) -> list[Task]:
    return build_questions(graph, MIXED, 1, retrieve)[0]


def test_as_many_as_asked_of_every_depth_and_shape(tasks: list[Task]) -> None:
    assert Counter(task.hops for task in tasks) == MIXED.counts
    assert Counter(task.provenance["shape"] for task in tasks if task.hops == 1) == {"chain": 20, "intersection": 12, "union": 8}
    assert len({task.key for task in tasks}) == len({task.digest for task in tasks}) == len(tasks)


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


def test_difficulty_is_counted(tasks: list[Task]) -> None:
    for task in tasks:
        constraints = 1 if task.provenance["shape"] == "chain" else 2
        assert task.constraints == constraints
        assert task.layers == (task.hops if constraints == 1 else len(task.formula) - 1)


@pytest.mark.parametrize("variety", [2, 3])
def test_richer_wording_keeps_the_constants(graph: KnowledgeGraph, retrieve: Retrieve, variety: int) -> None:
    tasks, _ = build_questions(graph, MIXED.model_copy(update={"variety": variety}), 1, retrieve)
    for task in tasks:
        named = [m for t in task.formula for n in (t[0], t[2]) if n.startswith("C@") for m in n[2:].split(" | ")]
        assert all(name in task.question for name in named)
        assert "{" not in task.question


@pytest.mark.slow
def test_the_same_tasks_whatever_the_hash_seed() -> None:
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


def test_a_count_is_reached_by_other_kinds_where_the_graph_is_short_of_one() -> None:
    titles = [f"film {number}" for number in range(60)]
    facts = [Fact(title, "year", f"{1900 + number}", (title,)) for number, title in enumerate(titles)]
    graph = KnowledgeGraph(facts, [Document(title, title, f"{title}.", "films") for title in titles])
    tasks, failures = build_questions(graph, QuestionConfig(counts={1: 1, 2: 1}, count=40), 1)
    assert [task.hops for task in tasks] == [1] * 40
    assert len({task.key for task in tasks}) == 40
    assert [(failure.kind, failure.item["missing"]) for failure in failures] == [(RejectionReason.SHORTFALL, 20)]
    assert len(build_questions(graph, QuestionConfig(counts={1: 20, 2: 20}), 1)[0]) == 20


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


def test_what_search_does_not_find_is_dropped_with_its_reason(graph: KnowledgeGraph) -> None:
    tasks, failures = build_questions(graph, QuestionConfig(counts={2: 5}, intersections=1.0), 1, retrieve=_finds_nothing)
    assert tasks == []
    assert {RejectionReason.NOT_FOUND, RejectionReason.SHORTFALL} <= {failure.kind for failure in failures}


def _finds_nothing(query: str) -> Document | None:
    return None


def test_facts_that_no_document_states_are_not_asked_for() -> None:
    document = Document("d", "a", "a: r b.", "x")
    graph = KnowledgeGraph([Fact("a", "r", "b", ("d",)), Fact("a", "s", "c")], [document])
    tasks, _ = build_questions(graph, QuestionConfig(counts={1: 10}), 1)
    assert [task.answers for task in tasks] == [("b",)]


def test_splits_of_one_graph_share_no_answer_and_no_entity_on_the_way(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    named: dict[str, set[str]] = {}
    for split in ("train", "heldout"):
        config = QuestionConfig(counts={1: 50, 2: 50, 3: 20})
        tasks, _ = build_questions(graph, config, 1, retrieve, split=split, allowed=_only(split))
        assert len(tasks) > 60
        assert {task.split for task in tasks} == {split}
        named[split] = {name for task in tasks for name in (*task.provenance["path"], *task.answers)}
    assert not named["train"] & named["heldout"]


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


def _only(split: str) -> Callable[[str], bool]:
    return lambda entity: split_of(entity, 0.4) == split


def test_a_value_without_a_document_is_left_by_what_is_known_of_another_entity(film_graph: KnowledgeGraph) -> None:
    path = (
        Hop("Dawn", "cast", "Ann"),
        Hop("Dusk", "year", "1951", (Anchor("cast", ("Ann",), linked=True), Anchor("genre", ("Western",)))),
    )
    formula = formula_of(path)
    assert solve(film_graph, formula) == {"1951"}
    assert trace(film_graph, formula, "1951") == path
    assert path[1].query == "Ann Western"
    tasks, _ = build_questions(film_graph, QuestionConfig(counts={2: 20}), 1, retrieve=_film_of(film_graph))
    assert formula in [task.formula for task in tasks]
    question = next(task.question for task in tasks if task.formula == formula)
    assert question == "year of the film with genre Western and cast the cast of Dawn?"


@pytest.fixture
def film_graph() -> KnowledgeGraph:
    """Dawn and Dusk share an actress, Dusk and Noon a genre, so that only both together tell Dusk; actors have no document."""
    rows = [
        ("Dawn", "cast", "Ann"),
        ("Dawn", "year", "1950"),
        ("Dusk", "cast", "Ann"),
        ("Dusk", "genre", "Western"),
        ("Dusk", "year", "1951"),
        ("Noon", "cast", "Bob"),
        ("Noon", "genre", "Western"),
        ("Noon", "year", "1952"),
    ]
    documents = [Document(title, title, f"{title} film", "films") for title in ("Dawn", "Dusk", "Noon")]
    return KnowledgeGraph([Fact(s, r, o, (s,)) for s, r, o in rows], documents, {"Dawn": "film", "Dusk": "film", "Noon": "film"})


def _film_of(graph: KnowledgeGraph) -> Retrieve:
    return lambda query: graph.documents["Dusk" if "Western" in query or "1951" in query else "Dawn"]


def test_tracing_refuses_formulas_that_are_no_single_line(film_graph: KnowledgeGraph) -> None:
    assert trace(film_graph, [("C@Dawn", "cast", "?"), ("C@Dusk", "cast", "?")], "Ann") is None
    assert trace(film_graph, [("C@Dawn", "cast", "?")], "Bob") is None


@pytest.mark.parametrize("wrong", [{"intersections": 0.6, "unions": 0.6}, {"counts": {7: 1}}, {"counts": {1: -1}}, {"seed": 1}])
def test_impossible_wishes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        QuestionConfig.model_validate(wrong)
