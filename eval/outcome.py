"""Verifiers of the final answer, and the verifier of each task: by its answer, by the state that it left, or by what it was paid.

Only the policy's own last answer action counts: never the prompt, an observation, or text around the answer. A trajectory
ended by a fault is invalid and has no value; one without an answer is a failure with value 0.

A task whose provenance says `"set": true` asks for all of its answers; every other asks for any one. `"verifier"` in the provenance names
the verifier that judges it, `"options"` are those of a kind, such as a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eval.answers import as_list
from eval.kinds import KINDS, Kind
from eval.returns import EnvironmentReward
from eval.state import StateVerifier
from eval.verifier import Verifier, why_not_finished
from warehouse.records import Outcome, Score, Task, Trajectory


@dataclass(frozen=True, slots=True)
class AnswerVerifier:
    """Judges the answer of a trajectory by the rule of a kind."""

    kind: Kind

    @property
    def name(self) -> str:
        """The kind's name."""
        return self.kind.name

    @property
    def version(self) -> str:
        """The kind's version."""
        return self.kind.version

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """The score of the trajectory's own answer; invalid after a fault or where the task cannot be judged."""
        if reason := why_not_judged(task, trajectory):
            return self._score(trajectory, None, Outcome.INVALID, reason)
        if trajectory.answer is None:
            return self._score(trajectory, 0.0, Outcome.FAILURE)
        try:
            value, success = self.kind.judge(trajectory.answer, task.answers, options_of(task, self.kind))
        except ValueError as error:
            return self._score(trajectory, None, Outcome.INVALID, str(error))
        return self._score(trajectory, value, Outcome.SUCCESS if success else Outcome.FAILURE)

    def _score(self, trajectory: Trajectory, value: float | None, verdict: Outcome, error: str | None = None) -> Score:
        return Score(trajectory.id, self.name, self.version, value, verdict, error)


class ExactMatch(AnswerVerifier):
    """`qa_em`: the answer is an accepted one, or the exact set of them where the task asks for all."""

    def __init__(self) -> None:
        super().__init__(KINDS["qa_em"])


_OF_ACTS: tuple[Verifier, ...] = (StateVerifier(), StateVerifier(strict=True), EnvironmentReward())
VERIFIERS: dict[str, Verifier] = {**{name: AnswerVerifier(kind) for name, kind in KINDS.items()}, **{each.name: each for each in _OF_ACTS}}
"""Every verifier that judges a trajectory by its record alone, by name: those a task or a configuration may name."""


def verifier_of(task: Task, default: str) -> Verifier:
    """The verifier that a task's provenance names, or else the one called `default`."""
    named = task.provenance.get("verifier")
    return VERIFIERS[named if isinstance(named, str) and named in VERIFIERS else default]


def options_of(task: Task, kind: Kind) -> dict[str, Any]:
    """The options that a task's provenance gives for a kind."""
    given = task.provenance.get("options")
    options = dict(given) if isinstance(given, dict) else {}
    return options | ({"set": True} if asks_for_set(task) and "set" in kind.options else {})


def asks_for_set(task: Task) -> bool:
    """Whether a task asks for all of its answers and not for any one."""
    return task.provenance.get("set") is True


def right_answer(task: Task) -> str:
    """An answer that is accepted: the list of all where the task asks for a set, else the first. Raises ValueError where none is."""
    if not task.answers:
        raise ValueError(f"the task {task.key} accepts no answer")
    return as_list(task.answers) if asks_for_set(task) else task.answers[0]


def why_not_judged(task: Task, trajectory: Trajectory) -> str | None:
    """Why no verifier of answers can speak: the trajectory ended by a fault, or the task accepts nothing."""
    nothing = None if any(answer.strip() for answer in task.answers) else "the task accepts no answer"
    return why_not_finished(trajectory) or nothing
