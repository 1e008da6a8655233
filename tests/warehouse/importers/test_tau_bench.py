"""tau-bench's results: calls, replies to the user, rewards, runs that broke or used up their steps, the agents that write text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from warehouse.importers.runs import ImportedRuns
from warehouse.importers.tau_bench import read_tau_bench
from warehouse.records import Outcome, StopReason, Trajectory

TOLD = {"user_id": "u", "instruction": "Book a flight.", "actions": [{"name": "book", "kwargs": {}}], "outputs": ["305"]}
JUDGED = {"task": TOLD, "source": "user", "user_cost": 0.1, "reward_info": {"reward": 1.0, "info": {}, "actions": []}}


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def asks(name: str) -> dict[str, Any]:
    return said("assistant", None, tool_calls=[{"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}])


def gives(name: str, content: str) -> dict[str, Any]:
    return said("tool", content, tool_call_id="c", name=name)


HI = [said("system", "# Policy"), said("user", "Hi")]
TRAJ = [
    *HI, said("assistant", "Your id?"), said("user", "u"), asks("details"), gives("details", "{}"),
    asks("book"), gives("book", "done"), said("assistant", "Booked."), said("user", "Thanks ###STOP###"),
]  # fmt: skip


def read(tmp_path: Path, *rows: Any) -> ImportedRuns:
    path = tmp_path / "gpt-4o-airline.json"
    path.write_text(json.dumps(list(rows), indent=2))
    return read_tau_bench(path)


def row(traj: Any = TRAJ, **more: Any) -> dict[str, Any]:
    return {"task_id": 3, "reward": 1.0, "info": JUDGED, "traj": traj, "trial": 0} | more


def turns(run: Trajectory) -> list[tuple[Any, ...]]:
    return [(turn.tool, turn.arguments, turn.observation) for turn in run.turns]


def test_a_run_keeps_its_calls_its_replies_and_its_reward(tmp_path: Path) -> None:
    made = read(tmp_path, row())
    task, run, score = made.records
    assert (task.question, task.answers, task.provenance["task"]) == ("Book a flight.", (), TOLD)
    assert turns(run) == [
        (None, None, "u"), ("details", "{}", "{}"), ("book", "{}", "done"), ("answer", "Booked.", "Thanks ###STOP###")
    ]  # fmt: skip
    assert (run.policy, run.outcome, run.stop_reason) == ("gpt-4o-airline", Outcome.SUCCESS, StopReason.ANSWERED)
    assert (score.verifier, score.value, run.provenance["row"]["traj"]) == ("tau-bench_reward", 1.0, TRAJ)


def test_a_run_that_broke_is_invalid_and_one_that_used_up_its_steps_a_failure(tmp_path: Path) -> None:
    broken = row([], reward=0.0, info={"error": "RateLimitError", "traceback": "…"})
    unfinished = row(TRAJ[:6], reward=0.0, info=JUDGED | {"reward_info": None})
    runs = read(tmp_path, broken, row([], reward=0.0), unfinished).trajectories
    assert [(run.outcome, run.stop_reason, run.reward, (run.error or "").split(":")[0]) for run in runs] == [
        (Outcome.INVALID, StopReason.FAULT, None, "broken"),
        (Outcome.INVALID, StopReason.FAULT, None, "empty"),
        (Outcome.FAILURE, StopReason.MAX_TURNS, 0.0, ""),
    ]


def test_calls_that_react_writes_as_text_are_calls(tmp_path: Path) -> None:
    action = 'Thought:\nI look.\nAction:\n{"name": "details", "arguments": {"id": "u"}}'
    reply = 'Thought:\nDone.\nAction:\n{"name": "respond", "arguments": {"content": "Booked."}}'
    traj = [*HI, said("assistant", action), said("user", "API output: {}"), said("assistant", reply), said("user", "###STOP###")]
    run = read(tmp_path, row(traj)).trajectories[0]
    assert turns(run) == [("details", '{"id": "u"}', "{}"), ("answer", reply, "###STOP###")]
    assert run.turns[0].action.startswith("Thought:\nI look.\n")
