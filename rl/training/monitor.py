"""The metric monitor: figures of a step against the limits that were set for them.

Reward tells of trouble last. Long before it falls, groups lose their variance, the likelihood of correct trajectories sinks, actions can no
longer be read, or engine and learner no longer compute the same. A limit that is broken for its number of steps warns, pauses or stops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl.training.config import MetricLimit
from warehouse.errors import WorkFailed


@dataclass(frozen=True, slots=True)
class Alert:
    """A metric beyond its limit: its value at `step`, and the first of the steps in a row that it did so."""

    limit: MetricLimit
    value: float
    since: int
    step: int

    def __str__(self) -> str:
        return f"{self.limit.sign} is {self.value:.4g} at step {self.step} and {_demand(self.limit)}; it began at step {self.since}"


class TrainingHalted(WorkFailed):
    """A metric beyond its limit ended the training; the same command goes on from the last checkpoint where it was a pause."""

    def __init__(self, alert: Alert) -> None:
        super().__init__(f"training came to a {alert.limit.then}: {alert}")
        self.alert = alert

    def __reduce__(self) -> tuple[type[TrainingHalted], tuple[Alert]]:
        """An error of a learner's worker must come to the process that started it."""
        return type(self), (self.alert,)


@dataclass(slots=True)
class _Watch:
    """What is remembered of one limit: the highest value, and since when it is broken and for how many steps."""

    highest: float = -math.inf
    since: int = 0
    steps: int = 0


class MetricMonitor:
    """Watches figures step by step, and says when a limit has been broken for its number of steps."""

    def __init__(self, limits: Sequence[MetricLimit]) -> None:
        self._limits = tuple(limits)
        self._watches = [_Watch() for _ in self._limits]
        self.fatal: Alert | None = None
        """What pauses or stops the run, once there is such."""

    def check(self, step: int, figures: Mapping[str, float]) -> list[Alert]:
        """The limits that come to be broken with this step; a metric that the step does not have changes nothing."""
        alerts = []
        for limit, watch in zip(self._limits, self._watches, strict=True):
            value = figures.get(limit.sign)
            if value is not None and _observe(watch, limit, step, value):
                alerts.append(Alert(limit, value, watch.since, step))
        fatal = sorted((alert for alert in alerts if alert.limit.then != "warn"), key=lambda alert: alert.limit.then == "pause")
        self.fatal = fatal[0] if fatal else None
        return alerts

    def acknowledge(self) -> None:
        """Begin to count anew: whoever goes on after a pause has seen it."""
        for watch in self._watches:
            watch.since = watch.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, by limit, as JSON can hold it."""
        return {
            _key(limit): [None if watch.highest == -math.inf else watch.highest, watch.since, watch.steps]
            for limit, watch in zip(self._limits, self._watches, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a checkpoint; a limit that it does not know begins anew."""
        for limit, watch in zip(self._limits, self._watches, strict=True):
            if _key(limit) in state:
                highest, watch.since, watch.steps = state[_key(limit)]
                watch.highest = -math.inf if highest is None else highest


def _observe(watch: _Watch, limit: MetricLimit, step: int, value: float) -> bool:
    """Take up one value; whether the limit is broken for its number of steps, just now."""
    broken = _breaks(value, limit, watch.highest)
    if math.isfinite(value):
        watch.highest = max(watch.highest, value)
    if not broken:
        watch.since = watch.steps = 0
        return False
    watch.since = watch.since or step
    watch.steps += 1
    return watch.steps == limit.steps


def _breaks(value: float, limit: MetricLimit, highest: float) -> bool:
    return (
        not math.isfinite(value)
        or (limit.below is not None and value < limit.below)
        or (limit.above is not None and value > limit.above)
        or (limit.falls is not None and value < highest - limit.falls)
    )


def _demand(limit: MetricLimit) -> str:
    bounds = {
        "not be below": limit.below,
        "not be above": limit.above,
        "not fall below its highest by more than": limit.falls,
    }
    bounded = [f"{words} {bound:.4g}" for words, bound in bounds.items() if bound is not None]
    return f"may {' and '.join(bounded)}" if bounded else "must be a finite number"


def _key(limit: MetricLimit) -> str:
    return limit.model_dump_json()
