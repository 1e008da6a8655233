"""A trajectory in the terminal: every call of every turn with what it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.cli.output import print_task, print_trajectory
from warehouse import Call, Lake, Outcome, Score, StopReason, Task, Trajectory, Turn

CALLS = (
    Call("search", "Amber Stone", "ok", "a page", 0.25, 2, 0.5, {"documents": 3}),
    Call("lookup", '{"query": "[bold]x"}', "fault", "gone", None),
)


@pytest.mark.slow
def test_calls_are_shown_with_what_they_took(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    turn = Turn(0, (1, 2), (-0.5, -1.0), "two calls", "search", "Amber Stone", (3,), "a page", 0.5, "ok", 1.0, 4, (4, 5), CALLS)
    run = Trajectory("t", "k", "p", "rl", 2, (9,), (turn,), StopReason.MAX_SECONDS, Outcome.FAILURE, 0.0, 1, None, 2.0)
    with Lake(tmp_path) as lake:
        lake.add([Task("k", "search", "Where?", ("x",)), run])
        (stored,) = lake.trajectories()
        print_trajectory(stored, lake, tokens=True)
    shown = capsys.readouterr().out
    assert "stopped by max_seconds" in shown
    assert "call         search Amber Stone  [ok · 250 ms · 2 retries · reward 0.5 · documents 3]" in shown
    assert 'call         lookup {"query": "[bold]x"}  [fault]' in shown
    assert "observation  a page  [masked, 1 tokens]" in shown


@pytest.mark.slow
def test_an_outcome_is_that_of_the_latest_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `flywheel reverify` found is in every view, and in what is shown of a trajectory and of its task."""
    monkeypatch.setenv("COLUMNS", "200")
    run = Trajectory("t", "k", "p", "eval", 2, (9,), (), StopReason.MAX_TURNS, Outcome.FAILURE, 0.0, 1, None, 2.0)
    task = Task("k", "search", "Where?", ("x",))
    with Lake(tmp_path) as lake:
        lake.add([task, run, replace(run, id="other")])
        lake.add([Score("t", "qa_em", "5", 1.0, Outcome.SUCCESS)])
        for each in lake.trajectories():
            print_trajectory(each, lake, tokens=False)
        print_task(task, lake)
    shown = capsys.readouterr().out
    assert "outcome success (at first failure) · reward 0.0" in shown and "outcome failure · reward 0.0" in shown
    assert "attempts  p, eval: failure 1" in shown and "attempts  p, eval: success 1" in shown
