"""Parts that fall on single turns (a process reward), and the penalties for how a trajectory spends its turns and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from eval.verifier import Attempt
from rl.learning.describing import OK, is_readable, tool_calls
from rl.rewards.part import Grounds, Value
from warehouse.records import Task, Trajectory, Turn


def environment(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """What the environment itself gave for each turn, by its calls."""
    return [Value.of_turns([sum(call.reward or 0.0 for call in turn.calls) for turn in t.turns]) for _, t in attempts]


def evidence(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """For each turn, the share of the required documents that its calls found and no earlier turn had; 1 in all where all were found.

    Required are the documents that state the facts along the task's path. A retrieval reward, as in arXiv 2505.15117.
    """
    return [_found(task, trajectory, grounds.evidence.get(task.key, frozenset())) for task, trajectory in attempts]


def tool_success(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """For each turn, the share of its tool calls that succeeded, divided by the number of turns; so a call more earns nothing by itself."""
    return [Value.of_turns([_succeeded(turn) / len(trajectory.turns) for turn in trajectory.turns]) for _, trajectory in attempts]


def void_turns(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """A penalty on each turn whose action could not be read: -1 divided by the number of turns."""
    return [Value.of_turns([0.0 if is_readable(turn) else -1 / len(t.turns) for turn in t.turns]) for _, t in attempts]


def length(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """A penalty on action tokens: minus their share of `rewards.length_tokens`, and -1 at most."""
    limit = grounds.config.length_tokens
    tokens = [sum(len(turn.action_ids) for turn in trajectory.turns) for _, trajectory in attempts]
    return [Value(-min(1.0, count / limit)) for count in tokens]


def _found(task: Task, trajectory: Trajectory, required: frozenset[str]) -> Value:
    if not required:
        return Value.unknown(f"no document is known that proves task {task.key}")
    left = set(required)
    turns = []
    for turn in trajectory.turns:
        found = {title for title in left if any(_shows(call.observation, title) for call in tool_calls([turn]))}
        left -= found
        turns.append(len(found) / len(required))
    return Value.of_turns(turns)


def _shows(observation: str, title: str) -> bool:
    """Whether a document of that title is among the passages of an observation: each begins with its title, on a line of its own."""
    lines = (line for line in observation.splitlines() if line.startswith(title))
    return any(not line[len(title) : len(title) + 1].isalnum() for line in lines)


def _succeeded(turn: Turn) -> float:
    calls = tool_calls([turn])
    return sum(call.outcome == OK for call in calls) / len(calls) if calls else 0.0
