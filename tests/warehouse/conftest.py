"""Lakes and records for the tests of the warehouse. Everything is real: DuckDB, DuckLake, files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from warehouse import (
    Batch,
    Call,
    Check,
    Completion,
    Document,
    Example,
    Fact,
    Failure,
    Image,
    Lake,
    Metric,
    Outcome,
    Part,
    PartKind,
    Pin,
    Policy,
    Record,
    RewardPart,
    Run,
    Score,
    SearchCounts,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

MakeTrajectory = Callable[..., Trajectory]


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Lake(home := tmp_path_factory.mktemp("empty") / "home"):
        return home


@pytest.fixture
def lake(empty_home: Path, tmp_path: Path) -> Iterator[Lake]:
    """An empty lake: a copy, which is opened faster than one is made."""
    with Lake(shutil.copytree(empty_home, tmp_path / "home")) as lake:
        yield lake


def _turn(index: int, tool: str = "search") -> Turn:
    text, answers = f"Amber «Stone» {index}", tool == "answer"
    seen, seen_ids = ("", ()) if answers else ("line\nanother 'quoted' \x00 line", (1, 2))
    ids, logprobs, versions = (5, 6, 7 + index), (-0.1, -2.5e-9, 0.0), (index, index, index + 1)
    return Turn(
        index, ids, logprobs, f"<{tool}> {text}</{tool}>", tool, text, seen_ids, seen, None if index else 0.5, "ok", 0.25, index,
        policy_versions=versions, calls=_calls(index, tool),
    )  # fmt: skip


def _calls(index: int, tool: str) -> tuple[Call, ...]:
    """One call; the first turn has a second one, of which more is known."""
    first = Call(tool, f"Amber «Stone» {index}", "ok", "" if tool == "answer" else "line", 0.25)
    return (first, Call("lookup", None, "miss", "x", 0.75, 2, 0.5, {"documents": 0})) if index == 0 else (first,)


@pytest.fixture(scope="session")
def make_trajectory() -> MakeTrajectory:
    """A maker of trajectories: `n_turns` turns of which the last answers; other fields as given."""

    def make(id: str, n_turns: int = 2, **fields: Any) -> Trajectory:
        turns = tuple(_turn(index, "answer" if index == n_turns - 1 else "search") for index in range(n_turns))
        started, stop, outcome = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC), StopReason.ANSWERED, Outcome.SUCCESS
        base = Trajectory(id, "t1", "p1", "rl", 3, (9, 8), turns, stop, outcome, 1.0, 2**31 - 1, started, 1.5)
        return replace(base, **fields)

    return make


@pytest.fixture(scope="session")
def one_of_each(make_trajectory: MakeTrajectory) -> list[Record]:
    """At least one record of every kind, with empty, missing and awkward values among them."""
    moment = datetime(2026, 5, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    formula = (("V@a", "cast member", "C@X"), ("V@a", "release year", "?"))
    return [
        Fact("a'b", "likes", "c", ("d1", "d2"), "world"),
        Fact("a'b", "likes", "c", (), "other world"),
        Document("d1", "Title", 'Text with "quotes", tabs\t and emoji 🎡.', "world"),
        Task("t1", "search", "Who?", ("one", "two"), formula, "eval", 2, 3, 1, {"seed": 7, "path": ["x", {"y": None}]}),
        Task("t2", "search", "What?", ()),
        make_trajectory("full", 3, step=4, suite="held_out", sample=2, wheel_turn=2),
        make_trajectory("empty", 0, outcome=None, reward=None, stop_reason=StopReason.FAULT, error="engine died"),
        make_trajectory("foreign", 0, prompt_ids=(), started=None, seconds=None, provenance={"file": "runs.jsonl", "line": 3}),
        Image("abc", "image/png", 2, 3, b"\x89PNG\x00\xff"),
        Score("full", "qa_em", "1", 1.0, Outcome.SUCCESS),
        Score("empty", "qa_em", "1", None, Outcome.INVALID, "no trajectory"),
        RewardPart("full", "evidence", 0.5, 0.75, (0.25, 0.5)),
        RewardPart("full", "judge", 1.0, None, (), "no answer came"),
        SearchCounts("full", 3, 2, 1, 0, 1, 0, 1),
        Batch("r", 3, ("full", "bare"), ("bare",)),
        Example("e1", "trajectory", (Part(PartKind.TOKENS, "", ids=(1,)), Part(PartKind.TOKENS, "action", True, ids=(2, 3))), ("full",), 2),
        Example("e3", "fas_plan", (Part(PartKind.QUESTION, "Who?"), Part(PartKind.CALL, "a 'b'", True, "search")), ("t1",)),
        Example("e2", "document", (), ()),
        Check("e1", "fas_plan", "index", "1", True),
        Check("e1", "fas_plan", "teacher", "someone/1", False, "logic"),
        Completion("c1", "someone", {"messages": [], "seed": 0}, "text", "stop", 3, 1),
        Policy("p1", None, "init", "/weights", "abc", None),
        Policy("p2", "p1", "rl", "/weights2", "def", 12, 2, True),
        Run("r1", "rl", 1, {"lr": 1e-3, "rounds": [2, 4]}, "digest", 3, None, "running", moment),
        Metric("r1", "rl", 1, 5, "loss", 0.125),
        Failure("corpus", "debris", "no name", {"text": "and", "at": [1, 2]}),
        Failure("corpus", "debris", "nothing known"),
        Pin("paper", 7),
        Pin("train", 8, "SELECT * FROM tasks", 2, "0123456789abcdef"),
    ]
