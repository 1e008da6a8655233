"""The figures of one policy on one suite, from its judged attempts; invalid ones take part in none of them.

Intervals hold 95 %. With one attempt a task that of a share of successes is Wilson's; with several it comes from a bootstrap that
resamples tasks, because attempts at one task are alike. Where every attempt has the same verdict a bootstrap would claim certainty: there
it is Wilson's over the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, cast

from eval.statistics import Interval, bootstrap_mean, bootstrap_ratio, majority_at_k, pass_at_k, pass_hat_k, wilson
from eval.trials import Trial, grouped, judged

HEADLINES = re.compile(r"success|(pass@|pass\^|majority@)([1-9][0-9]{0,3})")
"""The names of figures that a suite may have as its headline."""

Axis = Literal["hops", "turns", "horizon"]
AXES: tuple[Axis, ...] = ("hops", "turns", "horizon")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its interval, over so many tasks; `estimate` is None where no task has enough judged attempts."""

    name: str
    tasks: int
    estimate: Interval | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What attempts cost on average; `seconds` over those that were measured, None where none was."""

    attempts: int
    turns: float
    calls: float
    prompt_tokens: float
    action_tokens: float
    observation_tokens: float
    seconds: float | None


def success(trials: Sequence[Trial], name: str = "success") -> Figure:
    """The share of successes among judged attempts: average@k where each task has k."""
    tasks = list(grouped(judged(trials), lambda trial: trial.task).values())
    if not tasks:
        return Figure(name, 0, None)
    counts, sizes = [_successes(task) for task in tasks], [len(task) for task in tasks]
    share, same = sum(counts) / sum(sizes), sum(counts) in (0, sum(sizes))
    if same or max(sizes) == 1:
        return Figure(name, len(tasks), Interval(share, *wilson(len(tasks) * int(share) if same else sum(counts), len(tasks))))
    return Figure(name, len(tasks), bootstrap_ratio(counts, sizes))


def at_k(trials: Sequence[Trial], kind: str, k: int) -> Figure:
    """`pass@`, `pass^` or `majority@` k, averaged over the tasks with at least k judged attempts; majority takes the first k."""
    tasks = [task for task in grouped(judged(trials), lambda trial: trial.task).values() if len(task) >= k]
    values = [_RULES[kind](task, k) for task in tasks]
    if not values:
        return Figure(f"{kind}{k}", 0, None)
    return Figure(f"{kind}{k}", len(tasks), _mean(values))


def headline(trials: Sequence[Trial], name: str) -> Figure:
    """The figure called `name`. Raises ValueError where there is no such figure."""
    found = HEADLINES.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no figure {name!r}; name success, pass@K, pass^K or majority@K")
    return success(trials) if found[1] is None else at_k(trials, found[1], int(found[2]))


def ladder(trials: Sequence[Trial], samples: int) -> list[Figure]:
    """average@samples and, where there are several, pass@k, pass^k and majority@k for k of 1, 2, 4, … and `samples`.

    Those of one attempt are all the same.
    """
    if samples == 1:
        return [success(trials, "average@1")]
    steps = sorted({*(2**power for power in range(samples.bit_length()) if 2**power <= samples), samples})
    return [success(trials, f"average@{samples}"), *(at_k(trials, kind, k) for kind in _RULES for k in steps)]


def by(trials: Sequence[Trial], axis: Axis) -> dict[int, Figure]:
    """Success by hops of the task, by turns taken or by the horizon in force."""
    groups = grouped(judged(trials), lambda trial: cast(int, getattr(trial, axis)))
    return {value: success(groups[value], f"{axis} {value}") for value in sorted(groups)}


def cost(trials: Sequence[Trial]) -> Cost | None:
    """What the attempts cost on average, invalid ones included; None without any."""
    if not trials:
        return None
    timed = [trial.seconds for trial in trials if trial.seconds is not None]
    return Cost(
        attempts=len(trials),
        turns=fmean(trial.turns for trial in trials),
        calls=fmean(trial.calls for trial in trials),
        prompt_tokens=fmean(trial.prompt_tokens for trial in trials),
        action_tokens=fmean(trial.action_tokens for trial in trials),
        observation_tokens=fmean(trial.observation_tokens for trial in trials),
        seconds=fmean(timed) if timed else None,
    )


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
    whole = sum(values)
    if all(value in (0.0, 1.0) for value in values):
        return Interval(whole / len(values), *wilson(round(whole), len(values)))
    return bootstrap_mean(values)
