"""Suites are defined, drawn and entered: by name, the same each time, and refused in one sentence where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.suites.tasks import SUITE, origin_of, suite_of
from flows.config import FlywheelConfig, load_config
from flows.data.imports import TaskImport, import_tasks
from flows.suites.config import SuiteConfig, corpus_of, find_suite, own_suite
from flows.suites.evaluation import _keep_tasks, same_documents
from flows.suites.results import check_same
from flows.suites.tasks import SuiteTasks, digest_of, draw_tasks
from tests.flows.homes import NOW, ended
from warehouse import Lake, Run, Task
from warehouse.errors import RequestError

CONFIG = load_config("from_scratch")
MEANING = "Share of the questions in this file that one greedy attempt answers rightly."


def suite(tmp_path: Path, *rows: dict[str, Any], **settings: Any) -> SuiteConfig:
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "tasks", "path": tmp_path / "tasks.jsonl"}
    return SuiteConfig.model_validate({"name": "mine", "meaning": MEANING, "source": source, **settings})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "home")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["horizn=3"], "unknown key horizn"),
        (["name=../x"], "name"),
        (["name=held_out"], "already has a suite held_out"),
        (['kind={"options": {}}', "environment=null"], "set environment"),
    ],
)
def test_a_wrong_suite_is_refused_in_one_sentence(overrides: list[str], told: str) -> None:
    with pytest.raises(RequestError, match=told) as refused:
        find_suite("worlds", CONFIG.evaluation, overrides)
    assert "\n" not in str(refused.value)


def test_tasks_are_entered_under_the_suites_name_and_marked(tmp_path: Path, lake: Lake) -> None:
    rows = [{"key": f"k{number}", "question": f"Q{number}?", "answers": ["a"]} for number in range(5)]
    wanted = suite(tmp_path, *rows, verifier="qa_f1", dialect="chat", number=3)
    drawn = draw_tasks(wanted, CONFIG, lake)
    assert len(drawn.tasks) == 3 and drawn.documents is None
    assert drawn == draw_tasks(wanted, CONFIG, lake)
    task = drawn.tasks[0]
    assert (task.split, suite_of(task), task.key) == ("mine", "mine", f"mine-{origin_of(task)}")
    assert task.provenance["verifier"] == "qa_f1" and task.provenance["rollout"] == {"dialect": "chat"}
    assert digest_of(reversed(drawn.tasks)) == drawn.digest


def test_a_task_set_brings_the_documents_that_it_searches(tmp_path: Path, lake: Lake) -> None:
    row = {"question": "Who is the mayor?", "answers": ["Ann"]}
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "lunden.md").write_text("# Lunden\n\nThe mayor is Ann.\n")
    (tmp_path / "pages" / "empty.md").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"id": "d", "title": "Lunden", "text": "The mayor is Ann."}\n')
    for name, left_out in (("pages", ["empty_page"]), ("rows.jsonl", [])):
        source = {"kind": "tasks", "path": tmp_path / "tasks.jsonl", "documents": tmp_path / name}
        wanted = suite(tmp_path, row).model_validate({"name": "mine", "meaning": MEANING, "source": source})
        drawn = draw_tasks(wanted, CONFIG, lake)
        assert drawn.documents is not None and [document.title for document in drawn.documents] == ["Lunden"]
        assert [failure.kind for failure in drawn.failures] == left_out
        assert corpus_of(wanted) == f"the suite's own, {tmp_path / name}"
    assert corpus_of(suite(tmp_path, row)) == corpus_of(own_suite("held_out", CONFIG.evaluation)) == "those of the home"
    assert not lake.documents()


def test_documents_that_have_changed_are_another_suite(tmp_path: Path, lake: Lake) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "d", "title": "Lunden", "text": "The mayor is Ann."}\n')
    wanted = suite(tmp_path, {"question": "Q?", "answers": ["a"]})
    wanted = wanted.model_copy(update={"source": wanted.source.model_copy(update={"documents": tmp_path / "rows.jsonl"})})
    first = draw_tasks(wanted, CONFIG, lake)
    figures = {"documents_digest": first.documents_digest}
    lake.add([ended("x", "mine-k", None, suite="mine"), Run("eval-p-mine", "eval", 1, {}, "d", 0, 1, "completed", NOW, figures=figures)])
    assert same_documents(lake, wanted, first) == first.documents_digest
    (tmp_path / "rows.jsonl").write_text('{"id": "d", "title": "Lunden", "text": "The mayor is Ole."}\n')
    with pytest.raises(RequestError, match=r"mine .*--set name=NAME"):
        same_documents(lake, wanted, draw_tasks(wanted, CONFIG, lake))


def test_a_row_cannot_name_code_as_its_environment(tmp_path: Path, lake: Lake) -> None:
    wanted = suite(tmp_path, {"question": "Q?", "answers": ["a"], "environment": "evil.py:create"})
    with pytest.raises(RequestError, match=r"evil\.py:create"):
        draw_tasks(wanted, CONFIG, lake)


def test_a_home_has_one_definition_of_a_suite(tmp_path: Path, lake: Lake) -> None:
    wanted = suite(tmp_path, {"question": "Q?", "answers": ["a"]})
    lake.add([Run("eval-p-mine", "eval", 1, {"suite": wanted.model_dump(mode="json")}, "d", 0, 1, "completed", NOW)])
    other = wanted.model_copy(update={"horizon": 3, "seed": 5})
    check_same(lake, other)  # nothing was attempted yet
    lake.add([ended("x", "mine-k", None, suite="mine")])
    check_same(lake, wanted)
    early = wanted.model_dump(mode="json")
    del early["source"]["documents"]  # as a home has it that was evaluated before there was such a key
    lake.replace([Run("eval-p-mine", "eval", 1, {"suite": early}, "d", 0, 1, "completed", NOW)])
    check_same(lake, wanted)
    check_same(lake, other.model_copy(update={"name": "other"}))
    with pytest.raises(RequestError, match="horizon, seed differ"):
        check_same(lake, other)


@pytest.mark.slow
def test_a_world_of_its_own_gives_the_same_deep_questions_each_time(lake: Lake) -> None:
    small = ["source.world.entities=600", 'source.questions.counts={"3": 20, "5": 20}', "number=15"]
    wanted = find_suite("browse", CONFIG.evaluation, small)
    drawn = draw_tasks(wanted, CONFIG, lake)
    assert len(drawn.tasks) == 15 and drawn.digest == draw_tasks(wanted, FlywheelConfig(), lake).digest
    assert {task.hops for task in drawn.tasks} == {5}
    assert all(task.proofs["easy"] is False for task in drawn.tasks)
    assert drawn.documents is not None and len(drawn.documents) == 600


def test_a_suite_of_a_file_never_replaces_imported_tasks_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Imported?", "answers": ["yes"]}) + "\n")
    import_tasks(tmp_path / "rows.jsonl", TaskImport("search", "qa_em", split="mine"), tmp_path / "home")
    config = SuiteConfig.model_validate({"name": "mine", "meaning": "m", "source": {"kind": "tasks", "path": tmp_path / "other.jsonl"}})
    other = SuiteTasks((Task("k", "search", "Other?", ("no",), split="mine", provenance={SUITE: "mine"}),))
    with Lake(tmp_path / "home") as lake:
        with pytest.raises(RequestError, match="imported other tasks"):
            _keep_tasks(lake, config, other)
        assert [task.question for task in lake.tasks(split="mine")] == ["Imported?"]
