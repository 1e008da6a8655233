"""Figures of a policy on a suite, computed from its judged attempts, and the comparison of two policies on the same tasks.

Invalid attempts count in no figure. Intervals are 95 %. With one attempt per task, success has Wilson's interval; with several, a bootstrap
that resamples tasks, because attempts at one task are correlated. With a single task, or equal shares on all tasks, a bootstrap would claim
certainty, so Wilson's interval over the tasks is used.

Two policies are compared on the tasks judged for both: by McNemar's exact test if both have one attempt per task, else by the sign-flip
test of the tasks' shares. The interval of the difference is a paired bootstrap over tasks. If all tasks have the same difference, as for
two policies that solved the same tasks, the interval covers what unseen tasks with another difference could contribute: Wilson's upper
bound for 0 of n.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import fmean
from typing import Literal, TypeVar, cast

from eval.statistics import (
    Interval,
    PairedTest,
    SignFlips,
    bootstrap_difference,
    bootstrap_mean,
    bootstrap_ratio,
    majority_at_k,
    paired_test,
    pass_at_k,
    pass_hat_k,
    wilson,
)

LARGEST_INVALID_SHARE = 0.02
"""Maximum invalid share; above it a suite has no result, since unjudged attempts may differ from judged ones."""

LEVEL = 0.05
"""Significance level of the paired test."""
HEADLINES = re.compile(r"success|(pass@|pass\^|majority@)([1-9][0-9]{0,3})")
"""Names of figures that can be a suite's headline."""

Axis = Literal["hops", "turns", "horizon"]
AXES: tuple[Axis, ...] = ("hops", "turns", "horizon")

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Trial:
    """One attempt at a task.

    `success` is None if it is invalid. `answer` is a key shared by equal answers, None without an answer. Tokens are those of the prompt,
    the actions and the observations; `seconds` is None if not measured.
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
    """Counts of judged and invalid attempts, out of `samples` attempts at each of `tasks` tasks."""

    tasks: int
    samples: int
    judged: int
    invalid: int

    @property
    def wanted(self) -> int:
        return self.tasks * self.samples

    @property
    def missing(self) -> int:
        return self.wanted - self.judged - self.invalid

    @property
    def objection(self) -> str | None:
        """Why the figures may not be quoted; None if they may."""
        if not self.wanted:
            return "the suite has no tasks"
        if self.missing:
            return f"{self.missing} of {self.wanted} attempts are missing"
        share = self.invalid / self.wanted
        if share > LARGEST_INVALID_SHARE:
            return f"{self.invalid} of {self.wanted} attempts ({100 * share:.1f} %) are invalid; at most 2 % are allowed"
        return None


def coverage(trials: Sequence[Trial], tasks: int, samples: int) -> Coverage:
    invalid = sum(trial.success is None for trial in trials)
    return Coverage(tasks, samples, len(trials) - invalid, invalid)


def judged(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with a verdict, sorted by task and sample."""
    return sorted((trial for trial in trials if trial.success is not None), key=lambda trial: (trial.task, trial.sample))


def grouped(trials: Sequence[Trial], key: Callable[[Trial], K]) -> Mapping[K, list[Trial]]:
    """Group the trials by `key`, in order of first appearance."""
    groups: dict[K, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its interval; `estimate` is None if no task, or too few tasks, have enough judged attempts."""

    name: str
    tasks: int
    estimate: Interval | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean cost of the attempts; `seconds` over those that were measured, None without any."""

    attempts: int
    turns: float
    calls: float
    prompt_tokens: float
    action_tokens: float
    observation_tokens: float
    seconds: float | None


_COUNTED = ("turns", "calls", "prompt_tokens", "action_tokens", "observation_tokens")


def success(trials: Sequence[Trial], name: str = "success") -> Figure:
    """Share of successes among judged attempts: average@k if each task has k."""
    tasks = list(grouped(judged(trials), lambda trial: trial.task).values())
    if not tasks:
        return Figure(name, 0, None)
    counts, sizes = [_successes(task) for task in tasks], [len(task) for task in tasks]
    if max(sizes) == 1 or len({count / size for count, size in zip(counts, sizes, strict=True)}) == 1:
        return Figure(name, len(tasks), _over_tasks(sum(counts) / sum(sizes), len(tasks)))
    return Figure(name, len(tasks), bootstrap_ratio(counts, sizes))


def at_k(trials: Sequence[Trial], kind: str, k: int) -> Figure:
    """`pass@`, `pass^` or `majority@` k, averaged over the tasks with at least k judged attempts. Majority uses the first k.

    No estimate if more than `LARGEST_INVALID_SHARE` of the tasks have fewer, since the unjudged ones may be the hard ones.
    """
    tasks = [task for task in grouped(judged(trials), lambda trial: trial.task).values() if len(task) >= k]
    tried = len({trial.task for trial in trials})
    enough = bool(tasks) and tried - len(tasks) <= LARGEST_INVALID_SHARE * tried
    return Figure(f"{kind}{k}", len(tasks), _mean([_RULES[kind](task, k) for task in tasks]) if enough else None)


def headline(trials: Sequence[Trial], name: str) -> Figure:
    """Return the figure called `name`. Raises ValueError if there is no such figure."""
    found = HEADLINES.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no figure {name!r}; choose success, pass@K, pass^K or majority@K")
    return success(trials) if found[1] is None else at_k(trials, found[1], int(found[2]))


def ladder(trials: Sequence[Trial], samples: int) -> list[Figure]:
    """Return average@samples and, for several samples, pass@k, pass^k and majority@k for k = 1, 2, 4, … and `samples`."""
    if samples == 1:
        return [success(trials, "average@1")]
    steps = sorted({*(2**power for power in range(samples.bit_length()) if 2**power <= samples), samples})
    return [success(trials, f"average@{samples}"), *(at_k(trials, kind, k) for kind in _RULES for k in steps)]


def by(trials: Sequence[Trial], axis: Axis) -> dict[int, Figure]:
    """Return success by hops of the task, turns taken, or horizon in force."""
    groups = grouped(judged(trials), lambda trial: cast(int, getattr(trial, axis)))
    return {value: success(groups[value], f"{axis} {value}") for value in sorted(groups)}


def cost(trials: Sequence[Trial]) -> Cost | None:
    """Mean cost of the attempts, including invalid ones; None without any."""
    if not trials:
        return None
    timed = [trial.seconds for trial in trials if trial.seconds is not None]
    means = {name: fmean(getattr(trial, name) for trial in trials) for name in _COUNTED}
    return Cost(attempts=len(trials), **means, seconds=fmean(timed) if timed else None)


def _successes(task: Sequence[Trial]) -> int:
    return sum(trial.success is True for trial in task)


def _majority(task: Sequence[Trial], k: int) -> float:
    return majority_at_k([trial.answer for trial in task], [trial.success is True for trial in task], k)


_RULES: dict[str, Callable[[Sequence[Trial], int], float]] = {
    "pass@": lambda task, k: pass_at_k(len(task), _successes(task), k),
    "pass^": lambda task, k: pass_hat_k(len(task), _successes(task), k),
    "majority@": _majority,
}


def _mean(values: Sequence[float]) -> Interval:
    if len(set(values)) == 1 or all(value in (0.0, 1.0) for value in values):
        return _over_tasks(sum(values) / len(values), len(values))
    return bootstrap_mean(values)


def _over_tasks(share: float, tasks: int) -> Interval:
    """A share with Wilson's interval over `tasks`; a fractional number of solved tasks uses the bounds of both neighbouring integers."""
    solved = round(share * tasks, 9)
    return Interval(share, wilson(floor(solved), tasks)[0], wilson(ceil(solved), tasks)[1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Success of both on `tasks` tasks, the difference with its 95 % interval, and the paired test."""

    tasks: int
    before: float
    after: float
    difference: Interval
    test: PairedTest | SignFlips

    @property
    def real(self) -> bool:
        """Whether the difference is significant at `LEVEL`."""
        return self.test.p_value < LEVEL

    @property
    def statement(self) -> str:
        by = f"{100 * self.difference.value:+.1f} points ({100 * self.difference.low:+.1f} to {100 * self.difference.high:+.1f})"
        verdict = "the difference is real" if self.real else "no difference is shown"
        return f"{verdict}: {by} on {self.tasks} tasks, {self.test.name}, p = {self.test.p_value:.2g}"


def compare(before: Sequence[Trial], after: Sequence[Trial]) -> Comparison | None:
    """Compare `after` with `before`; None if no task was judged for both."""
    left, right = (grouped(judged(trials), lambda trial: trial.task) for trials in (before, after))
    both = sorted(left.keys() & right.keys())
    if not both:
        return None
    old, new = [_share(left[task]) for task in both], [_share(right[task]) for task in both]
    return Comparison(len(both), fmean(old), fmean(new), _difference(old, new), paired_test(old, new))


def _difference(old: Sequence[float], new: Sequence[float]) -> Interval:
    if len({round(after - before, 9) for before, after in zip(old, new, strict=True)}) > 1:
        return bootstrap_difference(old, new)
    value, unseen = new[0] - old[0], wilson(0, len(old))[1]
    return Interval(value, value - unseen * (1 + value), value + unseen * (1 - value))


def _share(task: Sequence[Trial]) -> float:
    return sum(trial.success is True for trial in task) / len(task)
