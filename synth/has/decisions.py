"""Decisions: the actions that stood open at one step of a trajectory, which was taken, and how that is written as training text.

An action is described by what its policy thought and what it called, in whatever form the trajectory has: the tags of our dialect,
`<think>` before a call of any kind, or the lines `Thought:` and `Action:` of ReAct. The rendering `thought` keeps the form of a trajectory:
the list stands inside the policy's thought, before its call. `listing` is the paper's form, plain text with a line an option and the
choice in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from synth.parts import Called, Parts, acted, asked, calls_of, came, considered, of_turn, responses_of, thought_of, untagged
from warehouse.records import NOT_RUN, Part, PartKind, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Option:
    """One action that could be taken: its text, and the calls in it, each a tool and its argument; none for what is no call."""

    text: str
    calls: tuple[Called, ...] = ()

    @property
    def action(self) -> str:
        """What is done, whatever was thought before: options of one action are one option."""
        return "\n".join(f"{tool} {argument}" for tool, argument in self.calls) or self.text


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
    """One step: the options, the number of the one that was taken (from 0), and the real response (empty at the end).

    A step with one option is no choice: it stands in its record as what happened, for what follows rests on it.
    """

    step: Step
    options: tuple[Option, ...]
    chosen: int

    @property
    def is_choice(self) -> bool:
        """Whether there was anything to choose from."""
        return len(self.options) > 1

    @property
    def taken(self) -> Option:
        """The option that was taken."""
        return self.options[self.chosen]

    @property
    def response(self) -> str:
        """What came back."""
        return "\n".join(self.responses)

    @property
    def responses(self) -> list[str]:
        """What came back, call by call."""
        return responses_of(self.step.turn)


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


def render_thought(record: DecisionRecord) -> Parts:
    """The record in the form of a trajectory."""
    parts = asked(record.question)
    for step in record.steps:
        parts += _choice(step) if step.is_choice else of_turn(step.step.turn, learnt=False, responses=False)
        for response in step.responses:
            parts += came(response)
    return parts if record.correct is None else (*parts, Part(PartKind.TEXT, f" {_verdict(record)}", True))


def _choice(step: Decision) -> Parts:
    listed = " ".join(f"{number}. {option.text}" for number, option in enumerate(step.options, start=1))
    return considered(f"options: {listed} I will choose option {step.chosen + 1}") + calls_in(step.taken)


def render_listing(record: DecisionRecord) -> Parts:
    """The record in lines: `Option 1: …`, `I will choose option 1`, the response, `My decision is Correct`; `Action: …` for no choice."""
    lines = [f"Question: {record.question}"]
    for step in record.steps:
        if step.is_choice:
            lines += [f"Option {number}: {option.text}" for number, option in enumerate(step.options, start=1)]
            lines.append(f"I will choose option {step.chosen + 1}")
        else:
            lines.append(f"Action: {step.taken.text}")
        lines += [f"Response: {step.response}"] if step.response else []
    lines += [] if record.correct is None else [_verdict(record)]
    return (Part(PartKind.TEXT, "\n".join(lines), True),)


def calls_in(taken: Option, learnt: bool = True) -> Parts:
    """The calls of an option; none where it was no call."""
    return tuple(part for tool, argument in taken.calls for part in acted(tool, argument, learnt=learnt))


def shortened(response: str, max_characters: int) -> str:
    """`response` cut off to `max_characters`, with a mark."""
    if len(response) <= max_characters:
        return response
    return response[: max(0, max_characters - len(CUT))] + CUT


def _verdict(record: DecisionRecord) -> str:
    return f"My decision is {'Correct' if record.correct else 'Incorrect'}"


RENDERINGS: dict[Rendering, Callable[[DecisionRecord], Parts]] = {"thought": render_thought, "listing": render_listing}
"""Every rendering by its name."""
