"""Decisions: the actions that stood open at one step of a trajectory, which was taken, and how that is written as training text.

An action is described by what its policy thought and what it called, in whatever form the trajectory has: the tags of our dialect,
`<think>` before a call of any kind, or the lines `Thought:` and `Action:` of ReAct. The rendering `thought` keeps the text in the dialect
of tags: the list stands inside the policy's thought. `listing` is the paper's form, a line an option and the choice in words, for
policies whose actions stand in no tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from synth.demonstrations.oracle import disarm, observation, prompt, tagged, untagged
from warehouse.records import NOT_RUN, Trajectory, Turn

_REACT = re.compile(r"\s*Thought:(.*?)(?:^Action:.*|\Z)", re.DOTALL | re.MULTILINE)


Called = tuple[str, str]
"""A tool and its argument."""


@dataclass(frozen=True, slots=True)
class Option:
    """One action that could be taken: its text, and the calls in it, each a tool and its argument; none for what is no call."""

    text: str
    calls: tuple[Called, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a trajectory to find alternatives for: the question, the turns before it, and the turn itself."""

    trajectory_id: str
    task_key: str
    question: str
    prompt_ids: tuple[int, ...]
    before: tuple[Turn, ...]
    turn: Turn

    @property
    def key(self) -> tuple[str, int]:
        """What tells steps apart."""
        return self.trajectory_id, self.turn.index


@dataclass(frozen=True, slots=True)
class Decision:
    """One step: the options, the number of the one that was taken (from 0), and the real response (empty at the end)."""

    step: Step
    options: tuple[Option, ...]
    chosen: int

    @property
    def taken(self) -> Option:
        """The option that was taken."""
        return self.options[self.chosen]

    @property
    def response(self) -> str:
        """What came back."""
        return untagged(self.step.turn.observation)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A trajectory as decisions, with the judgement of its outcome; `correct` is None where nobody has judged it."""

    question: str
    steps: tuple[Decision, ...]
    correct: bool | None
    trajectory_id: str


def option(thought: str, *calls: Called) -> Option:
    """Calls after an optional thought, as an option."""
    return Option(", ".join([*([thought] if thought else []), *(f"{tool} {argument}" for tool, argument in calls)]), calls)


def describe(turn: Turn) -> Option:
    """An action as an option; what could not be read as an action stands as it was."""
    calls = calls_of(turn)
    return option(thought_of(turn.action), *calls) if calls else Option(f"write {untagged(turn.action)}")


def calls_of(turn: Turn) -> list[Called]:
    """The calls of a turn that were run; one that was recorded without its calls has at most the one that stands in the turn itself."""
    if turn.calls:
        return [(call.tool, call.arguments or "") for call in turn.calls if call.outcome != NOT_RUN]
    return [] if turn.tool is None else [(turn.tool, turn.arguments or "")]


def thought_of(action: str) -> str:
    """What the policy thought before its call, or nothing."""
    if "</think>" in action:
        return untagged(action.partition("</think>")[0])
    react = _REACT.match(action)
    return react[1].strip() if react is not None else ""


def steps_of(trajectory: Trajectory, question: str) -> list[Step]:
    """The decisions of a trajectory. Calls that were never run are none: nothing came of them, whatever else had been chosen."""
    turns: Sequence[Turn] = [turn for turn in trajectory.turns if turn.tool_outcome != NOT_RUN]
    return [
        Step(trajectory.id, trajectory.task_key, question, trajectory.prompt_ids, tuple(turns[:number]), turn)
        for number, turn in enumerate(turns)
    ]


Rendering = Literal["thought", "listing"]

CUT = " ..."
"""What stands at the end of a response that was cut off."""


def render_thought(record: DecisionRecord, max_response_characters: int | None = None) -> str:
    """The record in our dialect."""
    parts = [prompt(record.question)]
    for step in record.steps:
        listed = " ".join(f"{number}. {option.text}" for number, option in enumerate(step.options, start=1))
        parts.append(tagged("think", f"options: {listed} I will choose option {step.chosen + 1}") + call_of(step))
        response = shortened(step.response, max_response_characters)
        parts.append(observation(response) if response else "")
    return "".join(parts) + f" {_verdict(record)}" * (record.correct is not None)


def render_listing(record: DecisionRecord, max_response_characters: int | None = None) -> str:
    """The record in lines: `Option 1: …`, `I will choose option 1`, the response, `My decision is Correct`."""
    lines = [f"Question: {disarm(record.question)}"]
    for step in record.steps:
        lines += [f"Option {number}: {disarm(option.text)}" for number, option in enumerate(step.options, start=1)]
        lines.append(f"I will choose option {step.chosen + 1}")
        response = shortened(step.response, max_response_characters)
        lines += [f"Response: {disarm(response)}"] if response else []
    return "\n".join([*lines, *([] if record.correct is None else [_verdict(record)])])


def call_of(decision: Decision) -> str:
    """The calls that were made, in tags; none where it was no call."""
    return "".join(tagged(tool, argument) for tool, argument in decision.taken.calls)


def shortened(response: str, max_characters: int | None) -> str:
    """`response` cut off to `max_characters`, with a mark."""
    if max_characters is None or len(response) <= max_characters:
        return response
    return response[: max(0, max_characters - len(CUT))] + CUT


def _verdict(record: DecisionRecord) -> str:
    return f"My decision is {'Correct' if record.correct else 'Incorrect'}"


RENDERINGS: dict[Rendering, Callable[[DecisionRecord, int | None], str]] = {"thought": render_thought, "listing": render_listing}
"""Every rendering by its name."""
