"""The signs of health of every RL run against the limits that it was configured with: the worst value, and where a limit was broken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flows.report.data import COMPARED, Breach, Curve, ReportData, RunFacts
from rl.training.config import MetricLimit


@dataclass(frozen=True, slots=True)
class Sign:
    """One limit of one run: the last value of its sign, the one that came nearest to breaking it, and the breaches."""

    run: RunFacts
    limit: MetricLimit
    last: float
    worst: float
    breaches: tuple[Breach, ...]


def read_signs(data: ReportData) -> tuple[Sign, ...]:
    """Every limit of the wheel's own RL runs whose sign was measured, in the order of runs and limits."""
    curves = {(curve.run.id, curve.name): curve for curve in data.curves}
    return tuple(
        _sign(run, limit, curves[run.id, limit.sign], data.breaches)
        for run in data.runs
        if run.stage == "rl" and run.variant not in COMPARED
        for limit in run.limits
        if (run.id, limit.sign) in curves
    )


def limit_words(limit: MetricLimit) -> str:
    """What a limit demands, and what comes of breaking it for how many steps in a row, as one short sentence."""
    bounds = (("at least", limit.below), ("at most", limit.above), ("no fall by more than", limit.falls))
    told = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None) or "a finite number"
    return f"Limit: {told}, {limit.then} after {limit.steps} step{'' if limit.steps == 1 else 's'}."


def _sign(run: RunFacts, limit: MetricLimit, curve: Curve, breaches: Sequence[Breach]) -> Sign:
    own = tuple(breach for breach in breaches if (breach.run, breach.sign) == (run.id, limit.sign))
    return Sign(run, limit, curve.values[-1], _worst(limit, curve.values), own)


def _worst(limit: MetricLimit, values: Sequence[float]) -> float:
    """The lowest value where the limit is a floor or a fall, else the one that is furthest from zero."""
    if limit.below is not None or limit.falls is not None:
        return min(values)
    return max(values) if limit.above is not None else max(values, key=lambda value: math.fabs(value))
