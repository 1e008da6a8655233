"""Stored runs as a cold start: trajectories of whoever made them, as examples that the policy's dialect writes in its own words.

Question, thoughts, calls and results are taken from the record, with the tools mapped where they are called something else here. What a
policy of the wheel itself sampled is not written anew: its token ids are the example (`cold_start.example_of`). A run that is not taken is
a `Failure` with the reason.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from enum import StrEnum
from typing import Any

from rl.renderers.base import Schema
from rl.supervised.config import StoredRunsConfig, ToolMapping
from synth.demonstrations.cold_start import example_of
from synth.parts import asked, of_turn, offer
from warehouse.digests import digest
from warehouse.records import Example, Failure, Outcome, Part, PartKind, Task, Trajectory

IMPORT = "import"
"""The stage of runs from elsewhere."""


class Rejection(StrEnum):
    """Why a run makes no example."""

    INVALID = "invalid"
    FAILURE = "not_a_success"
    NOT_JUDGED = "not_judged"
    IMAGES = "shows_images"
    UNKNOWN_TASK = "unknown_task"
    HELD_OUT = "held_out"
    NO_ANSWER = "no_answer"
    UNREADABLE = "unreadable_action"
    UNKNOWN_TOOL = "unknown_tool"
    ENOUGH = "enough_of_its_task"


def choose_runs(
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    config: StoredRunsConfig,
    tools: Sequence[Schema],
    own: frozenset[str],
    seed: int,
    wheel_turn: int,
    held_out: Collection[str] = (),
) -> tuple[list[Example], list[Failure]]:
    """Examples of stored runs, and why the others make none.

    Args:
        tools: those that the policy will be offered; an imported run keeps its own where the configuration maps none.
        own: the ids of policies whose token ids are those of the policy that is trained.
        held_out: keys of tasks that evaluation asks, or that meet one that it asks.
    """
    examples: list[tuple[Trajectory, Example]] = []
    failures: list[Failure] = []
    for trajectory in sorted(trajectories, key=lambda each: (len(each.turns), each.id)):
        made = _held_out(trajectory, held_out) or _example(trajectory, tasks, config, tools, own, wheel_turn)
        if isinstance(made, Example):
            examples.append((trajectory, made))
        else:
            failures.append(_failure(trajectory, *made))
    kept, more = _at_most(examples, config.per_task)
    if config.count is not None:
        random.Random(seed).shuffle(kept)
        more += [_failure(trajectory, Rejection.ENOUGH, "more than were wanted") for trajectory, _ in kept[config.count :]]
        kept = kept[: config.count]
    return [example for _, example in kept], failures + more


def tools_of(trajectory: Trajectory) -> tuple[Schema, ...]:
    """The tools that a run was offered, where its format or its row tells; else those that it called, by the names of their arguments."""
    row = trajectory.provenance.get("row")
    recorded = trajectory.provenance.get("tools") or (row.get("tools") if isinstance(row, dict) else None)
    if isinstance(recorded, list) and recorded and all(_is_schema(each) for each in recorded):
        return tuple(recorded)
    called: dict[str, dict[str, Any]] = {}
    for turn in trajectory.turns:
        for call in turn.tool_calls:
            called.setdefault(call.tool, {}).update({name: {} for name in _object(call.arguments or "")})
    return tuple(
        {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": properties}}}
        for name, properties in called.items()
    )


Refused = tuple[Rejection, str]


def _example(
    trajectory: Trajectory,
    tasks: Mapping[str, Task],
    config: StoredRunsConfig,
    tools: Sequence[Schema],
    own: frozenset[str],
    wheel_turn: int,
) -> Example | Refused:
    refused = _unusable(trajectory, tasks, config)
    if refused is not None:
        return refused
    if trajectory.prompt_ids and trajectory.policy in own:
        return example_of(trajectory, wheel_turn)
    offered = tools if config.tools or trajectory.stage != IMPORT else tools_of(trajectory)
    names = {tool["function"]["name"] for tool in offered}
    parts = asked(tasks[trajectory.task_key].question)
    for turn in trajectory.turns:
        if not turn.calls:
            return Rejection.UNREADABLE, f"turn {turn.index} holds no call and no answer"
        learnt = turn.index not in trajectory.provenance.get("unlearnt_turns", ())
        parts += tuple(_mapped(part, config.tools) for part in of_turn(turn, learnt))
    unknown = sorted({part.tool for part in parts if part.kind is PartKind.CALL} - names)
    if unknown:
        called = ", ".join(name or "what the mapping takes out" for name in unknown)
        return Rejection.UNKNOWN_TOOL, f"it calls {called[:200]}, and on offer are {', '.join(sorted(names)) or 'none'}"
    identifier = f"run-{digest([trajectory.id, wheel_turn, *map(astuple, parts)])}"
    return offer(Example(identifier, "trajectory", parts, (trajectory.id, trajectory.task_key), wheel_turn), offered)


def _held_out(trajectory: Trajectory, held_out: Collection[str]) -> Refused | None:
    if trajectory.suite is None and trajectory.task_key not in held_out:
        return None
    return Rejection.HELD_OUT, "its question is one that evaluation asks, or meets one"


def _unusable(trajectory: Trajectory, tasks: Mapping[str, Task], config: StoredRunsConfig) -> Refused | None:
    if trajectory.outcome is Outcome.INVALID:
        return Rejection.INVALID, trajectory.error or "a fault ended it"
    if trajectory.outcome is Outcome.FAILURE:
        return Rejection.FAILURE, "the verifier says that it failed"
    if trajectory.outcome is None and config.unjudged == "drop":
        return Rejection.NOT_JUDGED, "it has no verdict; `flywheel reverify` gives one, or set unjudged = keep"
    if trajectory.images:
        return Rejection.IMAGES, "its images would be lost: an example holds none"
    if trajectory.task_key not in tasks:
        return Rejection.UNKNOWN_TASK, f"the lake has no task {trajectory.task_key}"
    return None if trajectory.answer is not None else (Rejection.NO_ANSWER, "it ends without an answer")


def _mapped(part: Part, tools: Mapping[str, ToolMapping]) -> Part:
    """A call under our name of its tool and of its arguments."""
    mapping = tools.get(part.tool)
    if part.kind is not PartKind.CALL or mapping is None:
        return part
    values = _object(part.text)
    renamed = {mapping.arguments.get(name, name): value for name, value in values.items()}
    return replace(part, tool=mapping.name, text=json.dumps(renamed, ensure_ascii=False) if values else part.text)


def _object(arguments: str) -> dict[str, Any]:
    """The arguments by their names; none where they are plain text."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("function"), dict) and isinstance(value["function"].get("name"), str)


def _at_most(examples: list[tuple[Trajectory, Example]], most: int) -> tuple[list[tuple[Trajectory, Example]], list[Failure]]:
    """The first `most` of each task, and the others as failures."""
    seen: Counter[str] = Counter()
    kept, failures = [], []
    for trajectory, example in examples:
        seen[trajectory.task_key] += 1
        if seen[trajectory.task_key] <= most:
            kept.append((trajectory, example))
        else:
            failures.append(_failure(trajectory, Rejection.ENOUGH, f"{most} of its task are taken"))
    return kept, failures


def _failure(trajectory: Trajectory, rejection: Rejection, reason: str) -> Failure:
    return Failure("synth", f"cold_start_{rejection}", reason, {"trajectory": trajectory.id, "task": trajectory.task_key})
