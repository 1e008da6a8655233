"""Decisions among alternative actions at trajectory steps, their rendering as training text, and the style-leak measure.

An action is described by its thought and calls, whatever the trajectory's format (tags, `<think>` before a call, ReAct lines). The
rendering `thought` keeps the form of a trajectory and lists the options inside the thought; `listing` is the paper's plain text.

The style leak is how often a classifier that sees only length and words finds the taken action: a conditional logit (softmax over a step's
options of a linear function of length and hashed words), fitted by L-BFGS with a ridge penalty, cross-validated over trajectories.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rl.rollouts.context import SUMMARY
from synth.parts import Called, Parts, acted, asked, calls_of, came, considered, of_turn, responses_of, thought_of, untagged
from synth.questions.text_comparison import plain
from warehouse.records import NOT_RUN, Part, PartKind, Trajectory, Turn

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True, slots=True)
class Option:
    """A possible action: its text and its calls (empty if it makes none)."""

    text: str
    calls: tuple[Called, ...] = ()

    @property
    def action(self) -> str:
        """The action without its thought; options with equal actions are duplicates."""
        return "\n".join(f"{tool} {argument}" for tool, argument in self.calls) or self.text


@dataclass(frozen=True, slots=True)
class Step:
    """A step to find alternatives for: the question, the preceding turns, and the turn itself."""

    run: Trajectory
    question: str
    before: tuple[Turn, ...]
    turn: Turn

    @property
    def trajectory_id(self) -> str:
        return self.run.id

    @property
    def task_key(self) -> str:
        return self.run.task_key

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Ids that the action continued; empty if they are unknown."""
        return self.run.context_of(self.turn.index)

    @property
    def key(self) -> tuple[str, int]:
        return self.trajectory_id, self.turn.index


@dataclass(frozen=True, slots=True)
class Decision:
    """One step with its options and the index of the one taken; a single option is no choice and is rendered as history."""

    step: Step
    options: tuple[Option, ...]
    chosen: int

    @property
    def is_choice(self) -> bool:
        return len(self.options) > 1

    @property
    def taken(self) -> Option:
        return self.options[self.chosen]

    @property
    def response(self) -> str:
        return "\n".join(self.responses)

    @property
    def responses(self) -> list[str]:
        return responses_of(self.step.turn)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A trajectory as decisions; `correct` is None if not judged."""

    question: str
    steps: tuple[Decision, ...]
    correct: bool | None
    trajectory_id: str


def option(thought: str, *calls: Called) -> Option:
    return Option(", ".join([*([thought] if thought else []), *(f"{tool} {argument}" for tool, argument in calls)]), calls)


def describe(turn: Turn) -> Option:
    """Convert a turn to an option; an unparsable action is kept as text."""
    calls = calls_of(turn)
    return option(thought_of(turn.action), *calls) if calls else Option(f"write {untagged(turn.action)}")


def unchosen(step: Step) -> Decision:
    """The step as history, without alternatives."""
    return Decision(step, (describe(step.turn),), 0)


def steps_of(trajectory: Trajectory, question: str) -> list[Step]:
    """Steps of a trajectory, without calls that were not run and without summaries, which the loop asked for."""
    turns: Sequence[Turn] = [turn for turn in trajectory.turns if turn.tool_outcome != NOT_RUN and turn.tool != SUMMARY]
    return [Step(trajectory, question, tuple(turns[:number]), turn) for number, turn in enumerate(turns)]


Rendering = Literal["thought", "listing"]

CUT = " ..."
"""Marks a truncated response."""


def render_thought(record: DecisionRecord) -> Parts:
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
    """Lines `Option 1: …`, `I will choose option 1`, the response, `My decision is Correct`; `Action: …` where no choice was made."""
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
    return tuple(part for tool, argument in taken.calls for part in acted(tool, argument, learnt=learnt))


def shortened(response: str, max_characters: int) -> str:
    """Truncate `response` to `max_characters`, including a mark."""
    if len(response) <= max_characters:
        return response
    return response[: max(0, max_characters - len(CUT))] + CUT


def _verdict(record: DecisionRecord) -> str:
    return f"My decision is {'Correct' if record.correct else 'Incorrect'}"


RENDERINGS: dict[Rendering, Callable[[DecisionRecord], Parts]] = {"thought": render_thought, "listing": render_listing}


FOLDS = 5
_BUCKETS = 4_096
_RIDGE = 1.0
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StyleLeak:
    """Number of choices, and the shares of taken actions found by the classifier and by chance."""

    choices: int
    found: float
    chance: float

    @property
    def excess(self) -> float:
        return self.found - self.chance


def style_leak(records: Sequence[DecisionRecord]) -> StyleLeak | None:
    """Measure the style leak; None if fewer records than folds contain a choice."""
    folds = [[decision for decision in record.steps if decision.is_choice] for record in records]
    folds = [choices for choices in folds if choices]
    if len(folds) < FOLDS:
        return None
    parts = [[decision for choices in folds[number::FOLDS] for decision in choices] for number in range(FOLDS)]
    found = 0
    for number, tried in enumerate(parts):
        weights = _fit([decision for place, part in enumerate(parts) if place != number for decision in part])
        found += sum(int(np.argmax(_features([decision]) @ weights)) == decision.chosen for decision in tried)
    every = [decision for part in parts for decision in part]
    return StyleLeak(len(every), found / len(every), float(np.mean([1 / len(decision.options) for decision in every])))


def _features(decisions: Sequence[Decision]) -> csr_matrix:
    """One row per option: log characters, log words, and a 1 per word bucket."""
    from scipy.sparse import csr_matrix

    places, columns, values = [0], list[int](), list[float]()
    for text in (option.text for decision in decisions for option in decision.options):
        words = plain(text).split()
        columns += [0, 1, *sorted({2 + zlib.crc32(word.encode()) % _BUCKETS for word in words})]
        values += [float(np.log1p(len(text))), float(np.log1p(len(words)))]
        values += [1.0] * (len(columns) - len(values))
        places.append(len(columns))
    return csr_matrix((values, columns, places), shape=(len(places) - 1, _BUCKETS + 2))


def _fit(decisions: Sequence[Decision]) -> Vector:
    from scipy.optimize import minimize

    sizes = np.array([len(decision.options) for decision in decisions])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    taken = starts + np.array([decision.chosen for decision in decisions])
    features = _features(decisions)

    def loss(weights: Vector) -> tuple[float, Vector]:
        scores = features @ weights
        scores = scores - np.repeat(np.maximum.reduceat(scores, starts), sizes)
        odds = np.exp(scores)
        sums = np.add.reduceat(odds, starts)
        residual = odds / np.repeat(sums, sizes)
        residual[taken] -= 1
        value = float(np.sum(np.log(sums)) - np.sum(scores[taken]) + _RIDGE * weights @ weights / 2)
        return value, features.T @ residual + _RIDGE * weights

    return np.asarray(minimize(loss, np.zeros(_BUCKETS + 2), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)
