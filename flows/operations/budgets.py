"""What a turn of the wheel has spent, and whether that is all it may spend.

A stage asks between its steps, stops where nothing is left, and keeps what it has made; the sentence that says so is a row of
`failures`. Stages of training that had not begun are then left out; evaluations and the gate are not cut, for they tell what
the turn was worth. The reckoning follows from the lake and the home alone, so a run that was killed reckons as one that was not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flows.operations.config import BudgetConfig
from rl.hardware import GIB
from warehouse import Lake, Metric, Run
from warehouse.errors import RequestError

LOOK_SECONDS = 3.0
"""How long a reckoning is good for: tokens are a query, the home's size a walk over its files."""

EARLIER = "earlier_seconds"
"""The figure of a run that says how long it was at work before it was begun once more."""
_SECONDS = f"""
SELECT coalesce(sum(coalesce((figures->>'{EARLIER}')::DOUBLE, 0)
    + if(state = 'running', 0, epoch(finished) - epoch(started) - coalesce((figures->>'paused_seconds')::DOUBLE, 0))), 0)::DOUBLE AS n
FROM runs WHERE wheel_turn = ?
"""
_SAMPLED = "SELECT coalesce(sum(action_tokens), 0)::BIGINT AS n FROM trajectories WHERE wheel_turn = ?"
_TAUGHT = "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::BIGINT AS n FROM completions"


class BudgetSpent(RequestError):
    """A stage was to begin in a turn that has nothing left to spend."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Seconds of work, tokens, and bytes on the disk."""

    seconds: float = 0.0
    tokens: int = 0
    size: int = 0

    def since(self, before: Spending) -> Spending:
        """What was spent since `before`."""
        return Spending(self.seconds - before.seconds, self.tokens - before.tokens, self.size - before.size)


def overspent(budget: BudgetConfig, spent: Spending) -> tuple[str, str] | None:
    """The first limit that `spent` has reached, as its name and a sentence; None where there is room."""
    if budget.hours is not None and spent.seconds >= budget.hours * 3600:
        return "hours", f"{spent.seconds / 3600:.3g} hours of {budget.hours:g} are spent"
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        return "tokens", f"{spent.tokens:,} tokens of {budget.tokens:,} are spent"
    if budget.disk_gib is not None and spent.size >= budget.disk_gib * GIB:
        return "disk_gib", f"the home grew by {spent.size / GIB:.3g} GiB of {budget.disk_gib:g}"
    return None


@dataclass(slots=True)
class Meter:
    """Reckons what is spent, at most every `look_seconds`, against a budget; `before` is what does not count, and `within` holds too."""

    budget: BudgetConfig
    reckon: Callable[[], Spending]
    before: Spending = field(default_factory=Spending)
    began: float = field(default_factory=time.monotonic)
    """When the run at work began: its seconds are not in the lake yet."""
    ends: bool = True
    """Whether a run that it stops is done for good, or goes on when it is started again."""
    within: Meter | None = None
    look_seconds: float = LOOK_SECONDS
    _looked: float = float("-inf")
    _found: tuple[str, str] | None = None

    def overspent(self) -> tuple[str, str] | None:
        """The limit that is reached and its sentence, None where there is room; once reached it stays so."""
        now = time.monotonic()
        if self._found is None and self.budget.limited and now - self._looked >= self.look_seconds:
            spent = self.reckon().since(self.before)
            self._found = overspent(self.budget, Spending(spent.seconds + now - self.began, spent.tokens, spent.size))
            self._looked = now
        return self._found or (self.within.overspent() if self.within is not None else None)

    def begin(self) -> None:
        """A run begins: what an attempt before it took is in the lake."""
        self.began = time.monotonic()
        if self.within is not None:
            self.within.begin()

    def leave_out(self, seconds: float) -> None:
        """Do not count so many seconds that have gone by."""
        self.began += seconds
        if self.within is not None:
            self.within.leave_out(seconds)


def turn_meter(lake: Lake, root: Path, turn: int, budget: BudgetConfig) -> Meter:
    """The meter of a whole turn: of the hours and tokens that bear its number, and of what came since its first stage began."""
    if not budget.limited:
        return Meter(budget, Spending)
    return Meter(budget, lambda: spending(lake, root, turn), _baseline(lake, root, turn))


def slice_meter(lake: Lake, root: Path, turn: int, allowance: BudgetConfig, budget: BudgetConfig) -> Meter:
    """The meter of one slice of a turn's work: of what is spent from now on, within the turn's budget, which its first slice begins.

    A run that it stops goes on with the next slice.
    """

    def reckon() -> Spending:
        return spending(lake, root, turn)

    whole = Meter(budget, reckon, _baseline(lake, root, turn))
    return Meter(allowance, reckon, reckon(), ends=False, within=whole)


def seconds_of(run: Run) -> float:
    """How long a run was at work, its earlier attempts and slices with it; a killed attempt counts as nothing."""
    own = 0.0 if run.finished is None else (run.finished - run.started).total_seconds() - run.figures.get("paused_seconds", 0.0)
    return own + run.figures.get(EARLIER, 0.0)


def spending(lake: Lake, root: Path, turn: int) -> Spending:
    """Seconds of the turn's runs as far as they have ended, its policy's tokens and all of the teacher's, and the size of the home."""
    return Spending(_number(lake, _SECONDS, turn), int(_number(lake, _SAMPLED, turn) + _number(lake, _TAUGHT)), size_of(root))


def size_of(root: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_size
            except FileNotFoundError:  # it was temporary
                continue
    return total


def _baseline(lake: Lake, root: Path, turn: int) -> Spending:
    """What the teacher had spent and how large the home was when the turn began, kept as metrics of the turn."""
    run_id = f"t{turn}-budget"
    stored = {metric.name: metric.value for metric in lake.metrics(run_id)}
    if not stored:
        stored = {"teacher_tokens": _number(lake, _TAUGHT), "bytes": float(size_of(root))}
        lake.add([Metric(run_id, "budget", turn, 0, name, value) for name, value in stored.items()])
    return Spending(0.0, int(stored["teacher_tokens"]), int(stored["bytes"]))


def _number(lake: Lake, sql: str, *parameters: int) -> float:
    return float(lake.query(sql, list(parameters)).column("n")[0].as_py())
