"""Verifiers of the final answer.

Only the policy's own last answer action counts: never the prompt, an observation, or text around the answer. A trajectory
ended by a fault is invalid and has no value; one without an answer is a failure with value 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eval.answers import exact_match, f1
from eval.numbers import same_number
from warehouse.records import Outcome, Score, StopReason, Task, Trajectory

AnswerValue = Callable[[str, tuple[str, ...]], float]
"""(answer, accepted answers) -> value in [0, 1]; success is a value of 1. Raises ValueError where it cannot judge."""


@dataclass(frozen=True, slots=True)
class AnswerVerifier:
    """Judges the answer of a trajectory by `value_of`."""

    name: str
    version: str
    value_of: AnswerValue

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """The score of the trajectory's own answer; invalid after a fault or where the task accepts no answer."""
        reason = _why_not_judged(task, trajectory)
        if reason is not None:
            return self._invalid(trajectory, reason)
        answer = trajectory.answer
        try:
            value = 0.0 if answer is None else self.value_of(answer, task.answers)
        except ValueError as error:
            return self._invalid(trajectory, str(error))
        return Score(trajectory.id, self.name, self.version, value, Outcome.SUCCESS if value >= 1.0 else Outcome.FAILURE)

    def _invalid(self, trajectory: Trajectory, reason: str) -> Score:
        return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, reason)


class ExactMatch(AnswerVerifier):
    """`qa_em`: the answer equals an accepted one after SQuAD's normalisation."""

    def __init__(self) -> None:
        super().__init__("qa_em", "1", _exact_match_value)


class TokenF1(AnswerVerifier):
    """`qa_f1`: the best F1 over words with an accepted answer; a success only where it is 1."""

    def __init__(self) -> None:
        super().__init__("qa_f1", "1", f1)


class FinalNumber(AnswerVerifier):
    """`gsm8k`: the answer ends on the same number as an accepted one."""

    def __init__(self) -> None:
        super().__init__("gsm8k", "1", _number_value)


def _why_not_judged(task: Task, trajectory: Trajectory) -> str | None:
    if trajectory.stop_reason is StopReason.FAULT or trajectory.outcome is Outcome.INVALID:
        return trajectory.error or "the trajectory ended by a fault"
    return None if task.answers else "the task accepts no answer"


def _exact_match_value(answer: str, golds: tuple[str, ...]) -> float:
    return float(exact_match(answer, golds))


def _number_value(answer: str, golds: tuple[str, ...]) -> float:
    return float(any(same_number(answer, gold) for gold in golds))
