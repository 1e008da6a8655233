"""What an iteration has spent of its budget.

Stages check between steps; when the budget is spent they stop, keep their results and record it in `failures`. Training stages that have
not begun are skipped; evaluations and the gate still run. Spending is computed from the lake and the home alone, so killed runs count like
any other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from flows.operations_config import BudgetConfig
from rl.hardware import GIB
from warehouse import Lake, Metric, Run
from warehouse.errors import RequestError

LOOK_SECONDS = 3.0
"""Minimum interval between measurements, since they query the tokens and walk the home's files."""

EARLIER = "earlier_seconds"
"""Figure of a run with the seconds of its earlier attempts."""
_SECONDS = f"""
SELECT coalesce(sum(coalesce((figures->>'{EARLIER}')::DOUBLE, 0)
    + if(state = 'running', 0, epoch(finished) - epoch(started) - coalesce((figures->>'paused_seconds')::DOUBLE, 0))), 0)::DOUBLE AS n
FROM runs WHERE wheel_turn = ?
"""
_SAMPLED = "SELECT coalesce(sum(action_tokens), 0)::BIGINT AS n FROM trajectories WHERE wheel_turn = ?"
_TAUGHT = "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::BIGINT AS n FROM completions"
_PAID = "SELECT coalesce(sum(usd), 0) AS n FROM completions"


class BudgetSpent(RequestError):
    """A stage cannot begin because its iteration's budget is spent."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Seconds of work, tokens, bytes on disk, and US dollars."""

    seconds: float = 0.0
    tokens: int = 0
    size: int = 0
    usd: float = 0.0

    def since(self, before: Spending) -> Spending:
        return Spending(self.seconds - before.seconds, self.tokens - before.tokens, self.size - before.size, self.usd - before.usd)


def overspent(budget: BudgetConfig, spent: Spending) -> tuple[str, str] | None:
    """Return the name of the first limit that `spent` has reached with a sentence, or None."""
    if budget.hours is not None and spent.seconds >= budget.hours * 3600:
        return "hours", f"{spent.seconds / 3600:.3g} hours of {budget.hours:g} are spent"
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        return "tokens", f"{spent.tokens:,} tokens of {budget.tokens:,} are spent"
    if budget.usd is not None and spent.usd >= budget.usd:
        return "usd", f"{spent.usd:.4g} US dollars of {budget.usd:g} are spent"
    if budget.disk_gib is not None and spent.size >= budget.disk_gib * GIB:
        return "disk_gib", f"the home grew by {spent.size / GIB:.3g} GiB of {budget.disk_gib:g}"
    return None


@dataclass(slots=True)
class Meter:
    """Measures spending since `before` against a budget, at most every `look_seconds`; `within` is an outer limit."""

    budget: BudgetConfig
    measure: Callable[[], Spending]
    before: Spending = field(default_factory=Spending)
    began: float = field(default_factory=time.monotonic)
    """Start of the current run, whose seconds are not in the lake yet."""
    ends: bool = True
    """Whether a run stopped by this meter is finished; otherwise the next call resumes it."""
    within: Meter | None = None
    look_seconds: float = LOOK_SECONDS
    _looked: float = float("-inf")
    _found: tuple[str, str] | None = None

    def overspent(self) -> tuple[str, str] | None:
        """Return the reached limit and its sentence, or None. A reached limit stays reached."""
        now = time.monotonic()
        if self._found is None and self.budget.limited and now - self._looked >= self.look_seconds:
            spent = self.measure().since(self.before)
            self._found = overspent(self.budget, replace(spent, seconds=spent.seconds + now - self.began))
            self._looked = now
        return self._found or (self.within.overspent() if self.within is not None else None)

    def begin(self) -> None:
        """Start a run's clock; the lake has the seconds of earlier attempts."""
        self.began = time.monotonic()
        if self.within is not None:
            self.within.begin()

    def leave_out(self, seconds: float) -> None:
        """Exclude elapsed seconds, such as those of a pause."""
        self.began += seconds
        if self.within is not None:
            self.within.leave_out(seconds)


def turn_meter(lake: Lake, root: Path, turn: int, budget: BudgetConfig) -> Meter:
    """Create the meter of an iteration, counting from its first stage."""
    if not budget.limited:
        return Meter(budget, Spending)
    return Meter(budget, lambda: spending(lake, root, turn), _baseline(lake, root, turn))


def slice_meter(lake: Lake, root: Path, turn: int, allowance: BudgetConfig, budget: BudgetConfig) -> Meter:
    """Create the meter of a slice of an iteration, from now and within the iteration's budget. The next slice resumes the run."""

    def measure() -> Spending:
        return spending(lake, root, turn)

    whole = Meter(budget, measure, _baseline(lake, root, turn))
    return Meter(allowance, measure, measure(), ends=False, within=whole)


def seconds_of(run: Run) -> float:
    """Working seconds of a run including earlier attempts and slices; a killed attempt counts as zero."""
    own = 0.0 if run.finished is None else (run.finished - run.started).total_seconds() - run.figures.get("paused_seconds", 0.0)
    return own + run.figures.get(EARLIER, 0.0)


def spending(lake: Lake, root: Path, turn: int) -> Spending:
    """Seconds of the iteration's finished runs, its policy tokens plus all teacher tokens, the size of the home, and teachers' dollars."""
    tokens = int(_number(lake, _SAMPLED, turn) + _number(lake, _TAUGHT))
    return Spending(_number(lake, _SECONDS, turn), tokens, size_of(root), _number(lake, _PAID))


def size_of(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_size
            except FileNotFoundError:  # a temporary file
                continue
    return total


def _baseline(lake: Lake, root: Path, turn: int) -> Spending:
    run_id = f"t{turn}-budget"
    stored = {metric.name: metric.value for metric in lake.metrics(run_id)}
    if not stored:
        stored = {"teacher_tokens": _number(lake, _TAUGHT), "bytes": float(size_of(root)), "usd": _number(lake, _PAID)}
        lake.add([Metric(run_id, "budget", turn, 0, name, value) for name, value in stored.items()])
    return Spending(0.0, int(stored["teacher_tokens"]), int(stored["bytes"]), stored["usd"])


def _number(lake: Lake, sql: str, *parameters: int) -> float:
    return float(lake.query(sql, list(parameters)).column("n")[0].as_py())
