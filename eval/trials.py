"""Attempts of one policy at the tasks of a suite, and what of them is there, judged, invalid or missing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

LARGEST_INVALID_SHARE = 0.02
"""A suite of which more is invalid has no result: what was not judged may differ from what was."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Trial:
    """One attempt at a task.

    `success` is None where it is invalid. `answer` is what equal answers have in common, None where none was given. Tokens are those of
    the prompt, of the actions and of the observations; `seconds` is None where nobody measured it.
    """

    task: str
    success: bool | None
    answer: Hashable | None = None
    sample: int = 0
    hops: int = 1
    horizon: int = 1
    turns: int = 1
    calls: int = 0
    prompt_tokens: int = 0
    action_tokens: int = 0
    observation_tokens: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of `tasks` tasks with `samples` attempts each: how many attempts are judged, invalid and missing."""

    tasks: int
    samples: int
    judged: int
    invalid: int

    @property
    def wanted(self) -> int:
        """Attempts that the suite asks for."""
        return self.tasks * self.samples

    @property
    def missing(self) -> int:
        """Attempts that were not made."""
        return self.wanted - self.judged - self.invalid

    @property
    def objection(self) -> str | None:
        """Why this is no result; None where it is one."""
        if not self.wanted:
            return "the suite has no task"
        if self.missing:
            return f"{self.missing} of {self.wanted} attempts are missing"
        share = self.invalid / self.wanted
        if share > LARGEST_INVALID_SHARE:
            return f"{self.invalid} of {self.wanted} attempts ({100 * share:.1f} %) are invalid, and at most 2 % may be"
        return None


def coverage(trials: Sequence[Trial], tasks: int, samples: int) -> Coverage:
    """What of `tasks` tasks with `samples` attempts each is there."""
    invalid = sum(trial.success is None for trial in trials)
    return Coverage(tasks, samples, len(trials) - invalid, invalid)


def judged(trials: Sequence[Trial]) -> list[Trial]:
    """Those with a verdict, by task and sample."""
    return sorted((trial for trial in trials if trial.success is not None), key=lambda trial: (trial.task, trial.sample))


def grouped(trials: Sequence[Trial], key: Callable[[Trial], K]) -> Mapping[K, list[Trial]]:
    """The trials by `key`, in the order of its values' first appearance."""
    groups: dict[K, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups
