"""Overlap of training data with suites and evaluation sets: counted at the snapshot of the training, and removed on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eval.suites.tasks import enter_suite
from flows.config import load_config
from flows.data.decontamination import decontaminate
from flows.suites.contamination import contamination
from flows.suites.tasks import SuiteTasks
from synth.exporters import PromptOptions, rl_dataset
from tests.flows.homes import SMALL, ended
from warehouse import Call, Document, DocumentSplit, Example, Lake, Outcome, Part, PartKind, Policy, Task, Trajectory, Turn

pytestmark = pytest.mark.slow

FORMULA = (("C@Oslo", "country", "V@x"), ("V@x", "capital", "?"))
LONG = "How many apples has Janet left for the market after breakfast with her friends?"
SUITE = [
    enter_suite(task, "s")
    for task in (
        Task("q1", "search", "What is the capital of where Oslo lies?", ("Oslo",), FORMULA),
        Task("q2", "search", LONG, ("9",)),
        Task("q3", "search", "Which river runs through Amber Town?", ("Blue River",)),
        Task("q4", "search", "Who wrote it?", ("Nobody",)),
    )
]
DRAWN = SuiteTasks(tuple(SUITE), (Document("d9", "Amber Town", "Amber Town lies on the Blue River.", "suite"),))


def sampled(task: Task) -> Trajectory:
    return ended(f"r-{task.key}", task.key, Outcome.SUCCESS, "t1-rl", "rl")


def searched(observation: str) -> Turn:
    call = Call("search", "Hill", "ok", observation)
    return Turn(0, (2,), (-0.5,), "a", "search", "Hill", (), observation, None, "ok", 0.1, 0, calls=(call,))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake(tmp_path / "home") as lake:
        yield lake


def trained(lake: Lake, *records: Example | Document | Task) -> None:
    """CPT on the records, then SFT on nothing, then RL on the one training task."""
    lake.add(records)
    snapshot = lake.snapshot()
    lake.add([Policy("t0-init", None, "init", "p", "w", None, 0), Policy("t1-cpt", "t0-init", "cpt", "p", "w", snapshot)])
    lake.add([Policy("t1-sft", "t1-cpt", "sft", "p", "w", lake.snapshot()), Policy("t1-rl", "t1-sft", "rl", "p", "w", lake.snapshot())])


def test_each_kind_of_overlap_is_counted(lake: Lake) -> None:
    same = Task("t1", "search", "the capital of Oslo's land?", ("Oslo",), (("C@Oslo", "country", "V@y"), ("V@y", "capital", "?")), "train")
    trained(
        lake,
        Document("w1", "The Town", "Amber Town lies on the Blue River.", "world"),
        Document("w2", "Blue River", "Blue River is a river.", "world"),
        Example("x1", "fas_reason", (Part(PartKind.QUESTION, LONG.lower()),), ("w2", "q1")),
        Example("x2", "document", (Part(PartKind.DOCUMENT, "Amber Town lies on the Blue River.", True),), ("w1",)),
        same,
    )
    lake.add([sampled(same)])
    found = contamination(lake, "t1-rl", "s", DRAWN)
    assert found.looked_at == ("t1-rl", "t1-sft", "t1-cpt", "t0-init") and found.unknown == {}
    counts = {sort: count for sort, count in found.counts.items() if count}
    assert counts == {"same_task": 1, "same_question": 1, "same_formula": 1, "same_document": 1, "same_entity": 1}
    assert found.tasks_asked == 2
    assert [(one.task, one.policy, one.item) for one in found.met if one.sort == "same_formula"] == [("s-q1", "t1-rl", "t1")]


def test_held_out_documents_shown_in_training_are_found(lake: Lake) -> None:
    same = Task("t1", "search", "the capital of another land?", ("Oslo",), split="train")
    trained(
        lake,
        Document("h1", "Green Hill", "Green Hill is a hill.", "world", DocumentSplit.HELD_OUT),
        Document("h2", "Red Hill", "Red Hill is a hill.", "world", DocumentSplit.HELD_OUT),
        Document("w1", "Amber Town", "Amber Town is a town.", "world"),
        Example("x1", "trajectory", (Part(PartKind.RESULT, "Amber Town is a town.\nRed Hill is a hill."),), ("t1",)),
        same,
    )
    shown = ("Green Hill is a hill.", "Amber Town is a town.")
    lake.add([replace(sampled(same), id=f"r{number}", turns=(searched(text),)) for number, text in enumerate(shown)])
    found = contamination(lake, "t1-rl", "s", SuiteTasks(tuple(SUITE)))
    met = {(one.task, one.policy, one.item) for one in found.met if one.sort == "shown_document"}
    assert met == {("h1", "t1-rl", "r0"), ("h2", "t1-sft", "x1")}


def test_only_the_lineage_counts_and_only_as_it_was_trained(lake: Lake) -> None:
    trained(lake)
    lake.add([Example("late", "fas_reason", (Part(PartKind.QUESTION, LONG),), ())])
    assert contamination(lake, "t1-rl", "s", DRAWN).met == (), "it came after the training"
    lake.add([Policy("other", "t0-init", "cpt", "p", "w", lake.snapshot())])
    assert contamination(lake, "t1-rl", "s", DRAWN).met == ()
    assert contamination(lake, "other", "s", DRAWN).tasks_asked == 1


def test_an_expired_snapshot_is_unknown_and_not_clean(lake: Lake) -> None:
    lake.add([Policy("lost", None, "cpt", "p", "w", 99_999)])
    found = contamination(lake, "lost", "s", DRAWN)
    assert found.looked_at == () and "no snapshot 99999" in found.unknown["lost"]


def test_tasks_of_suites_stay_out_of_training(lake: Lake) -> None:
    asked = Task("t1", "search", LONG, ("9",), split="train")
    lake.add([*SUITE, asked, Task("t2", "search", "Rome?", ("Rome",), split="train")])
    assert [row["key"] for row in rl_dataset(lake, lake.snapshot(), PromptOptions()).splits["train"]] == ["t1", "t2"]
    (row,) = [row for row in decontaminate(lake, load_config("quickstart"), {}) if row["suite"] == "s"]
    assert (row["tasks"], row["same_question"]) == (4, 1)
    assert sorted(task.key for task in lake.tasks()) == ["s-q1", "s-q2", "s-q3", "s-q4", "t2"]


def chain(city: str, name: str) -> tuple[tuple[str, str, str], ...]:
    return ((f"C@{city}", "country", f"V@{name}"), (f"V@{name}", "capital", "?"))


def test_overlap_with_an_evaluation_set_is_removed_and_reported(tmp_path: Path) -> None:
    (tmp_path / "seen.jsonl").write_text('{"question": "How many apples has Janet left for the market after breakfast?"}\n')
    asked = "how many apples has Janet left for the market after breakfast"
    with Lake(tmp_path / "home") as lake:
        lake.add([Task("e1", "search", "Oslo?", ("Oslo",), chain("Oslo", "x"), "held_out")])
        lake.add([Task("t1", "search", "the capital of where Oslo lies?", ("Oslo",), chain("Oslo", "land"), "train")])
        lake.add([Task("t2", "search", "Rome?", ("Rome",), chain("Rome", "x"), "train")])
        lake.add(Example(f"x{n}", "fas_reason", (Part(PartKind.QUESTION, said),), ()) for n, said in ((1, asked), (2, "Rome?")))
        before, config = lake.snapshot(), load_config(SMALL)
        rows = {row["suite"]: row for row in decontaminate(lake, config, {"seen": tmp_path / "seen.jsonl"})}
        assert (rows["held_out"]["tasks"], rows["held_out"]["same_formula"], rows["held_out"]["removed"]) == (1, 1, 1)
        assert (rows["seen"]["tasks"], rows["seen"]["same_question"], rows["seen"]["removed"]) == (1, 1, 1)
        assert [task.key for task in lake.tasks()] == ["e1", "t2"]
        assert [example.id for example in lake.examples()] == ["x2"]
        assert len(lake.tasks(at=before)) == 3 and len(lake.examples(at=before)) == 2
        again = {row["suite"]: row["removed"] for row in decontaminate(lake, config, {"seen": tmp_path / "seen.jsonl"})}
        assert again == {"held_out": 1, "seen": 1}
