"""The Expander over a generated world, by a model as an HTTP server plays it, half of whose replies are late, cut, chatty, in other keys, …

Every question is expanded or has its reason; nothing that is made is wrong by the graph; the account holds; nothing is asked twice.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rl.retrieval.search import SearchIndex
from synth.corpora.config import ExpanderConfig
from synth.corpora.expander import Expansion, expand
from synth.corpora.proposals import KnownFacts
from synth.formulas.projections import solve
from synth.formulas.triples import is_constant
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import first_hit
from synth.teachers.config import TeacherConfig
from synth.teachers.ledger import FILE, Ledger, Spent
from synth.teachers.model_teacher import open_teacher
from tests.synth.expanding_model import expanding_model
from tests.synth.teachers.faulty_server import FAULTS, ONCE, FaultyServer
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake, Outcome, Task
from warehouse.corpora.corpus import Corpus

CONFIG = ExpanderConfig(layers=1, horizon=5, concurrency=4)


@pytest.fixture(scope="module")
def index(world: Corpus) -> SearchIndex:
    return SearchIndex(world.documents)


@pytest.fixture(scope="module")
def questions(graph: KnowledgeGraph, index: SearchIndex) -> list[Task]:
    """Of one constant and of two."""
    config = QuestionConfig(structure="layerwise", counts={1: 6, 2: 3}, intersections=0.5)
    return build_questions(graph, config, 3, first_hit(index))[0]


def expanded(
    server: MisbehavingServer, lake: Lake, tasks: list[Task], index: SearchIndex, graph: KnowledgeGraph, **options: Any
) -> Expansion:
    limits = {"timeout_seconds": 0.5, "first_pause_seconds": 0.01, "attempts": 3, "concurrency": 4, "max_tokens": 4_000_000}
    teacher_config = TeacherConfig(kind="openai", model="m", base_url=server.url, **{**limits, **options})
    with open_teacher(teacher_config, lake) as teacher:
        return expand(tasks, teacher, index, CONFIG, 0, known=KnownFacts(graph))


@pytest.mark.slow
@pytest.mark.timeout(140)
def test_half_of_the_replies_are_faulty_and_nothing_wrong_comes_through(
    tmp_path: Path, questions: list[Task], index: SearchIndex, graph: KnowledgeGraph
) -> None:
    with FaultyServer(answer=expanding_model, share=0.5, late_seconds=0.8) as server, Lake(tmp_path) as lake:
        made = expanded(server, lake, questions, index, graph)
        asked = server.asked.total()
        again = expanded(server, lake, questions, index, graph)
        new = server.asked.total() - asked
        spent = Ledger(tmp_path / "lake" / FILE, "openai:m", Spent()).spent
        retried = lake.failures("teacher")
    assert server.met.keys() >= {"well", *FAULTS}, "each fault has been met"
    final = Counter(failure.kind for failure in made.failures if "trajectory" not in failure.item)
    assert made.tasks and len(made.tasks) + final.total() == len(questions), "each question is expanded, or says why it is not"
    assert {failure.kind for failure in retried} <= {"retried_timeout", "retried_connection", "retried_server_error"} and retried
    for task in made.tasks:
        origin = next(each for each in questions if each.key == task.provenance["expanded_from"])
        assert task.answers == origin.answers and task.proofs["defined"] is True
        assert set(task.proofs["unproven"]) <= {"type_consistent", "too_simple", "stated"}, "a verdict that could not be read stays open"
        assert solve(graph, task.formula) == set(task.answers)
        assert not any(is_constant(s) and is_constant(o) for s, _, o in task.formula) and task.proofs["shortcuts"] == []
        assert not any(step["constant"] in task.question for step in task.provenance["expansions"])
    assert {run.outcome for run in made.trajectories} <= {Outcome.SUCCESS, Outcome.FAILURE, Outcome.INVALID}
    assert new == 0 and again.tasks == made.tasks
    assert server.billed <= spent.tokens <= 4_000_000
    assert max(server.asked.values()) <= 2, "what keeps a reply from arriving does so once"
    assert sum(count - 1 for count in server.asked.values()) <= sum(server.met[fault] for fault in ONCE)


@pytest.mark.long
@pytest.mark.slow
def test_a_budget_that_ends_in_the_middle_is_kept_and_a_higher_one_goes_on(
    tmp_path: Path, questions: list[Task], index: SearchIndex, graph: KnowledgeGraph
) -> None:
    patient = {"timeout_seconds": 60.0}  # a busy machine is late, and what is late would be asked again
    with MisbehavingServer(answer=expanding_model) as server:
        with Lake(tmp_path / "whole") as lake:
            whole = expanded(server, lake, questions, index, graph, **patient)
        asked = len(server.bodies)
        with Lake(tmp_path / "cut") as lake:
            stopped = expanded(server, lake, questions, index, graph, max_requests=asked // 2, **patient)
            assert len(server.bodies) == asked + asked // 2
            assert any("budget" in failure.reason for failure in stopped.failures if failure.kind == "invalid")
            assert len(stopped.tasks) < len(whole.tasks)
            gone_on = expanded(server, lake, questions, index, graph, **patient)
    assert len(server.bodies) == 2 * asked, "what was told is not asked again"
    assert gone_on.tasks == whole.tasks
    assert [failure.kind for failure in gone_on.failures] == [failure.kind for failure in whole.failures]
