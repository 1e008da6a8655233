"""A stage at work: where its records and figures go, how far it is, and whether its budget lets it go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from flows.operations.budgets import EARLIER, Meter
from flows.operations.control import Control
from flows.progress import StageProgress
from warehouse import Failure, Lake, Metric, Record, Run

log = logging.getLogger("flywheel")

FLUSH_SECONDS = 3.0
"""How long a record may wait before it is in the lake: one commit for many figures."""


@dataclass(slots=True)
class StageRun:
    """A stage at work: what it is called, and where its figures go."""

    lake: Lake
    run: Run
    meter: Meter | None = None
    """What it may spend; None is without limit."""
    total_steps: int | None = None
    stopped: str | None = None
    """Why it stopped before its end, in a sentence; None where it did not."""
    step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    first_step: int = 0
    began: float = field(default_factory=time.time)
    control: Control = field(default_factory=Control)
    """Whether it is to stand still."""
    _paused_before: float = 0.0
    """Seconds that `control` was paused before this run began, those that a step's figures have told, and those that the meter knows of."""
    _paused_told: float = 0.0
    _paused_metered: float = 0.0
    _waiting: list[Record] = field(default_factory=list)
    _writer: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "lake"))
    _writing: Future[None] | None = None
    _settling: float = 0.0
    _flushed: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    @property
    def lake_seconds(self) -> float:
        """How long the stage has waited for the lake."""
        return self.lake.seconds + self._settling

    @property
    def id(self) -> str:
        """The run's id in the lake."""
        return self.run.id

    @property
    def paused_seconds(self) -> float:
        """How long people have had it stand still."""
        return self.control.paused_seconds - self._paused_before

    def heed(self, control: Control) -> None:
        """Stand still from now on whenever `control` says so, and wait here as long as it does."""
        self.control, self._paused_before = control, control.paused_seconds
        self._stand_still()

    def metric(self, step: int, figures: Mapping[str, float]) -> bool:
        """Store the figures of one step; returns whether the stage is to stop here, and waits here while the wheel is paused."""
        self.record(step, figures)
        return self.spent()

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Store the figures of one step, and show them now and then."""
        run, figures = self.run, {**figures, **self._newly_paused()}
        self.keep(Metric(run.id, run.stage, run.wheel_turn, step, name, float(value)) for name, value in figures.items())
        self._show(step, figures)
        self._move(step)
        self.figures = dict(figures)

    def keep(self, records: Iterable[Record]) -> None:
        """Store records, with others in one commit, some seconds later. What passes over the step that they are of is to `flush` before."""
        self._waiting += records
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._begin_commit()

    def store(self, records: Iterable[Record]) -> None:
        """The same, but at once: they are committed in one batch while the stage goes on. Raises what the commit before it raised."""
        self._waiting += records
        self._begin_commit()

    def advance(self, done: int, total: int) -> None:
        """Report how far the work is where it has no figures of its own: trajectories of an evaluation, for example."""
        self.total_steps = total
        self._move(done)

    def progress(self) -> StageProgress:
        """How far it is, for whoever watches."""
        run = self.run
        return StageProgress(
            run.id,
            run.stage,
            run.wheel_turn,
            self.began,
            self.first_step,
            self.step,
            self.total_steps,
            resumed=EARLIER in run.figures,
            figures=self.figures,
        )

    def spent(self) -> bool:
        """Whether the budget is spent and the stage is to stop with what it has; said and recorded once. Waits while it is paused."""
        self._stand_still()
        found = self.meter.overspent() if self.meter is not None and self.stopped is None else None
        if self.meter is not None and found is not None:
            self.stopped = f"{self.id} stops: {found[1]}"
            log.warning(self.stopped)
            if self.meter.ends:
                self.lake.add([over_budget(self.run, found[0], self.stopped)])
        return self.stopped is not None

    def flush(self) -> None:
        """Wait until all records are in the lake."""
        self._begin_commit()
        self.settle()

    def settle(self) -> None:
        """Wait until all records of the commit under way are in the lake. Raises what storing it raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            began = time.perf_counter()
            writing.result()
            self._settling += time.perf_counter() - began

    def _stand_still(self) -> None:
        """Wait as long as the wheel is paused; the budget's hours go on without it."""
        if self.control.state.paused_since is not None:
            log.info("%s stands still%s", self.id, "" if self.step is None else f" behind step {self.step}")
            self.flush()
            self.control.wait()
        paused = self.paused_seconds
        if self.meter is not None:
            self.meter.leave_out(paused - self._paused_metered)
        self._paused_metered = paused

    def _newly_paused(self) -> dict[str, float]:
        """How long people have had it stand still since a step told so, where they have."""
        paused = self.paused_seconds
        new, self._paused_told = paused - self._paused_told, paused
        return {"paused_seconds": new} if new else {}

    def _begin_commit(self) -> None:
        self.settle()
        if self._waiting:
            self._writing = self._writer.submit(self.lake.add, self._waiting)
        self._waiting, self._flushed = [], time.monotonic()

    def _move(self, step: int) -> None:
        if self.step is None:
            self.first_step, self.began = step, time.time()
        self.step = step

    def _show(self, step: int, figures: Mapping[str, float]) -> None:
        if time.monotonic() - self._shown < 5.0 and step != self.total_steps:
            return
        self._shown = time.monotonic()
        of = f"/{self.total_steps}" if self.total_steps else ""
        shown = "  ".join(f"{name} {value:.3g}" for name, value in figures.items() if name in SHOWN)
        log.info("%s  step %d%s  %s", self.run.id, step, of, shown)


SHOWN = ("loss", "reward", "success", "horizon", "turns", "tokens_per_second", "logprob_difference")
"""The figures that the progress line shows; the lake has all of them."""


def over_budget(run: Run, limit: str, reason: str) -> Failure:
    """The record of a stage that was stopped or left out because its turn's budget was spent."""
    return Failure(run.stage, f"budget_{limit}", reason, {"run": run.id, "turn": run.wheel_turn})
