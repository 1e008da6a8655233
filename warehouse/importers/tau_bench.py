"""Reader of tau-bench results (arXiv 2406.12045): a JSON list of `{task_id, reward, info, traj, trial}`.

`traj` is chat messages with tool calls or, for the agents `act` and `react`, texts with `Action:` and JSON; both become turns with results.
A message to the user is a turn without a call, the user's reply its observation, and the agent's last message the answer. A reward of 1
within 1e-6 is a success (`tau_bench/types.py`). A run without `reward_info` was not judged: it ran out of steps, which tau-bench counts as
a failure. A broken run (`info.error`, no messages) is invalid.

Nothing is lost: the row is kept in `provenance`. The task is the instruction of the simulated user, with the expected actions and outputs
in its provenance; outputs are not accepted answers, since all of them must be said. A broken run has no instruction; its task is identified
by number only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.foreign import Row
from warehouse.importers.conversation import turns_of_messages
from warehouse.importers.messages import read_messages
from warehouse.importers.runs import (
    ImportedRuns,
    MalformedRow,
    RunCollector,
    RunEnd,
    number_of,
    verdict_of,
)
from warehouse.importers.schemas import schemas_of
from warehouse.importers.tables import read_rows
from warehouse.records import StopReason, Task

FORMAT = "tau-bench"
_REPLY = "respond"
_OUTPUT = "API output: "


def read_tau_bench(path: Path) -> ImportedRuns:
    """Read the runs of a file, or of the `.json` files in a folder. Raises RequestError if there is none."""
    return read_rows(FORMAT, path, (".json",), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: RunCollector) -> None:
    info, traj, reward = row.get("info"), row.get("traj"), number_of(row.get("reward"), "reward")
    if not isinstance(info, dict) or not isinstance(traj, list) or not isinstance(row.get("task_id"), int) or reward is None:
        raise MalformedRow("the row has no task_id, reward, info and traj")
    trial = row.get("trial", 0)
    if not isinstance(trial, int):
        raise MalformedRow("trial is not a number")
    task = _task(row["task_id"], info.get("task"), place.path)
    turns = turns_of_messages(read_messages(_with_calls(traj), schemas_of(row, collector.filled)), closed=True)
    end = RunEnd(verdict_of(reward), reward, _stop(info), _error(info))
    collector.add_run(place, task, place.path.stem, turns, end, f"{FORMAT}_reward", trial=trial)


def _stop(info: dict[str, Any]) -> StopReason:
    return StopReason.ANSWERED if isinstance(info.get("reward_info"), dict) else StopReason.MAX_TURNS


def _error(info: dict[str, Any]) -> str | None:
    return None if info.get("error") is None else f"broken: {info['error']}"


def _task(number: int, description: Any, path: Path) -> Task:
    if not isinstance(description, dict) or not isinstance(description.get("instruction"), str):
        key = f"{FORMAT}-{path.stem}-{number}"
        return Task(key, FORMAT, f"task {number} of {path.stem}", (), split="import", provenance={"format": FORMAT})
    key = f"{FORMAT}-{digest(description)}"
    return Task(key, FORMAT, description["instruction"], (), split="import", provenance={"format": FORMAT, "task": description})


def _with_calls(traj: list[Any]) -> list[Any]:
    """Messages of `act` and `react` with their calls as tool calls; others unchanged."""
    if any(isinstance(message, dict) and (message.get("tool_calls") or message.get("role") == "tool") for message in traj):
        return traj
    messages: list[Any] = []
    called = None
    for message in traj:
        if called is not None and isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
            message = {"role": "tool", "name": called["name"], "content": message["content"].removeprefix(_OUTPUT)}
        called = _action(message)
        messages.append(message if called is None else {**message, "content": _before(message), "tool_calls": [called]})
    return messages


def _action(message: Any) -> dict[str, Any] | None:
    """Call in an agent's text, as tau-bench reads it: JSON with name and arguments after the last `Action:`."""
    if not isinstance(message, dict) or message.get("role") != "assistant" or not isinstance(message.get("content"), str):
        return None
    try:
        action = json.loads(message["content"].rpartition("Action:")[2].strip())
    except (ValueError, RecursionError):
        return None
    named = isinstance(action, dict) and isinstance(action.get("name"), str) and action["name"] and "arguments" in action
    return action if named and action["name"] != _REPLY else None


def _before(message: dict[str, Any]) -> str:
    return str(message["content"]).rpartition("Action:")[0]
