"""A trajectory in the terminal: every call of every turn with what it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.output import print_trajectory
from warehouse import Call, Lake, Outcome, StopReason, Task, Trajectory, Turn

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
