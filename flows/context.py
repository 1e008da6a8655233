"""The open home (`RunContext`) and the running stage (`StageRun`) that every stage receives.

A process opens a home once and all its flows share it. Engines start with the first stage that needs them, or ahead of it
(`begin_engines`), and keep running: later stages load their weights into them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.graders.choice import JUDGE, Verifiers, asks_judge
from flows.config import FlywheelConfig
from flows.home import Home, exclusive, with_repositories
from flows.judges import HomeJudges, check_judge
from flows.lakes import champion_of, policy_of
from flows.operations.budgets import EARLIER, Meter
from flows.operations.control import Control, Progress, ProgressWriter, RequestListener, StageProgress
from flows.placement import reserved_cpus
from flows.plan import policy_id
from flows.status_line import show_status
from warehouse import Document, Failure, Lake, Metric, Policy, Record, Run, Task
from warehouse.storage import LOCAL

if TYPE_CHECKING:
    from rl.engines.base import PoolFigures
    from rl.ray_runtime import RayRuntime
    from rl.rollouts.config import RolloutConfig
    from rl.rollouts.rollout import Rollouts

log = logging.getLogger("flywheel")

FLUSH_SECONDS = 3.0
"""Maximum delay before a kept record is committed; many records share one commit."""
SHOW_SECONDS = 5.0
"""Minimum interval between a stage's progress lines."""
SHOWN = ("loss", "reward", "success", "horizon", "turns", "tokens_per_second", "logprob_difference")
"""Metrics on the progress line; the lake stores all of them."""


@dataclass(slots=True)
class StageRun:
    """A running stage: stores records and metrics, tracks progress, waits while paused, and stops when its budget is spent."""

    lake: Lake
    run: Run
    meter: Meter | None = None
    """Budget; None: unlimited."""
    total_steps: int | None = None
    stopped: str | None = None
    """Why the stage stopped early, as a sentence."""
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    first_step: int = 0
    began: float = field(default_factory=time.time)
    control: Control = field(default_factory=Control)
    _paused_before: float = 0.0
    """Seconds for which `control` was paused before this run began."""
    _paused_recorded: float = 0.0
    _paused_metered: float = 0.0
    _waiting: list[Record] = field(default_factory=list)
    _writer: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "lake"))
    _writing: Future[None] | None = None
    _settling: float = 0.0
    _flushed: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def lake_seconds(self) -> float:
        """Seconds spent waiting for the lake."""
        return self.lake.seconds + self._settling

    @property
    def paused_seconds(self) -> float:
        """Seconds for which this stage was paused."""
        return self.control.paused_seconds - self._paused_before

    def heed(self, control: Control) -> None:
        """Obey `control` from now on; wait while it is paused."""
        self.control, self._paused_before = control, control.paused_seconds
        self._wait_while_paused()

    def metric(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Store the metrics of a step and wait while paused. Return whether the stage must stop."""
        self.record(step, metrics)
        return self.spent()

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store the metrics of a step and log them periodically."""
        run, metrics = self.run, {**metrics, **self._newly_paused()}
        self.keep(Metric(run.id, run.stage, run.wheel_turn, step, name, float(value)) for name, value in metrics.items())
        self._show(step, metrics)
        self._move(step)
        self.metrics = dict(metrics)

    def keep(self, records: Iterable[Record]) -> None:
        """Queue records for a shared commit within seconds. Call `flush` before relying on them."""
        self._waiting += records
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._begin_commit()

    def store(self, records: Iterable[Record]) -> None:
        """Commit records immediately in the background. Raises the error of the previous commit, if any."""
        self._waiting += records
        self._begin_commit()

    def advance(self, done: int, total: int) -> None:
        """Report progress of work without step metrics, such as evaluation trajectories."""
        self.total_steps = total
        self._move(done)

    def progress(self) -> StageProgress:
        run, resumed = self.run, EARLIER in self.run.figures
        return StageProgress(
            run.id, run.stage, run.wheel_turn, self.began, self.first_step, self.step, self.total_steps, resumed, self.metrics
        )

    def spent(self) -> bool:
        """Return whether the stage must stop because its budget is spent; log and record this once. Waits while paused."""
        self._wait_while_paused()
        found = self.meter.overspent() if self.meter is not None and self.stopped is None else None
        if self.meter is not None and found is not None:
            self.stopped = f"{self.id} stops: {found[1]}"
            log.warning(self.stopped)
            if self.meter.ends:
                self.lake.add([over_budget(self.run, found[0], self.stopped)])
        return self.stopped is not None

    def flush(self) -> None:
        """Commit all queued records and wait."""
        self._begin_commit()
        self.settle()

    def settle(self) -> None:
        """Wait for the running commit and raise its error, if any."""
        writing, self._writing = self._writing, None
        if writing is not None:
            began = time.perf_counter()
            writing.result()
            self._settling += time.perf_counter() - began

    def _wait_while_paused(self) -> None:
        if self.control.state.paused_since is not None:
            log.info("%s is paused%s", self.id, "" if self.step is None else f" after step {self.step}")
            self.flush()
            self.control.wait()
        paused = self.paused_seconds
        if self.meter is not None:
            self.meter.leave_out(paused - self._paused_metered)
        self._paused_metered = paused

    def _newly_paused(self) -> dict[str, float]:
        paused = self.paused_seconds
        new, self._paused_recorded = paused - self._paused_recorded, paused
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

    def _show(self, step: int, metrics: Mapping[str, float]) -> None:
        if time.monotonic() - self._shown < SHOW_SECONDS and step != self.total_steps:
            return
        self._shown = time.monotonic()
        of = f"/{self.total_steps}" if self.total_steps else ""
        shown = "  ".join(f"{name} {value:.3g}" for name, value in metrics.items() if name in SHOWN)
        log.info("%s  step %d%s  %s", self.run.id, step, of, shown)


def over_budget(run: Run, limit: str, reason: str) -> Failure:
    """Record that a stage was stopped or skipped because the iteration's budget was spent."""
    return Failure(run.stage, f"budget_{limit}", reason, {"run": run.id, "turn": run.wheel_turn})


@dataclass(slots=True)
class RunContext:
    """An open home: configuration, lake, engines, judges and user requests."""

    home: Home
    config: FlywheelConfig
    lake: Lake
    _rollouts: Rollouts | None = field(default=None)
    turns: int | None = None
    """Number of iterations requested; None outside `flywheel run`."""
    _at_work: StageRun | None = field(default=None)
    _last_figures: PoolFigures | None = field(default=None)
    _ray: RayRuntime | None = field(default=None)
    judges: HomeJudges = field(init=False)
    control: Control = field(default_factory=Control)

    def __post_init__(self) -> None:
        self.judges = HomeJudges(self.config.evaluation.judge, self.lake)

    def verifiers(self, default: str | None = None, listed: Mapping[str, str] | None = None, tasks: Iterable[Task] = ()) -> Verifiers:
        """Return the home's verifiers, including the judge if `default` or a task needs it.

        Raises:
            RequestError: An unknown verifier, a judge without a model, or a judge that fails its calibration.
        """
        evaluation = self.config.evaluation
        if (default or evaluation.verifier) == JUDGE or asks_judge(tasks):
            check_judge(evaluation.judge)
            return evaluation.open_verifiers(default, listed, self.judges.of_answers)
        return evaluation.open_verifiers(default, listed)

    def calibrate(self) -> None:
        """Calibrate the judges that the configuration uses. Raise RequestError if one fails."""
        if self.config.asks_judge is None:
            return
        self.verifiers()
        for turn in (1, 2):
            rewards = self.config.for_turn(turn).rl.rewards
            self.verifiers(rewards.verifier)
            if rewards.judges_turns:
                _ = self.judges.of_turns

    def watch(self, run: StageRun) -> StageRun:
        """Make `run` the running stage: report its progress and make it obey user requests. Waits while paused."""
        self._at_work = run
        run.heed(self.control)
        return run

    def restrict(self) -> None:
        """Apply the requested limit on concurrent trajectories. Thread-safe."""
        rollouts = self._rollouts
        if rollouts is not None:
            with suppress(RuntimeError):  # rollouts are closing
                rollouts.admit(self.control.state.admitted)

    def work_facts(self) -> dict[str, Any]:
        """Return the running stage's run id and step, if any."""
        run = self._at_work
        return {} if run is None else {"run": run.id, "step": run.step}

    def progress(self) -> Progress:
        stage, rollouts = self._at_work, self._rollouts
        now = Progress(os.getpid(), time.time(), self.turns, stage.progress() if stage else None, control=self.control.state)
        if rollouts is None:
            return now
        engines, before = rollouts.figures(), self._last_figures
        self._last_figures = engines
        return replace(
            now, engines=engines, tokens_per_second=engines.tokens_per_second(before), environment_figures=rollouts.environment_figures()
        )

    def begin_engines(self) -> None:
        """Start engines with the home's first policy while an earlier stage runs; `rollouts` waits for them.

        Does nothing without a first policy, or if the learner may need the engines' memory: with GPU engines or `engine.sleep_level`.
        """
        engine, first = self.config.rollout.engine, policy_id(0, "init")
        if self._rollouts is None and not (engine.gpus or engine.sleep_level) and self.lake.runs("id = ? AND state = 'completed'", [first]):
            try:
                self.start_ray()
            except ConnectionError as error:  # the stage that needs them retries
                log.warning("engines could not be started early: %s", error)
                return
            self._begin(self.config.rollout, self.home.policies / first)

    def rollouts(self, policy_path: Path) -> Rollouts:
        """Return the engines and environments with the policy in `policy_path` loaded."""
        if self._rollouts is None:
            self.start_ray()
            return self._start(self.config.rollout, policy_path, self.lake.documents())
        if not self._rollouts.is_open:
            self._rollouts.open(self.lake.documents())
        self._rollouts.load_weights(policy_path, 0)
        self._rollouts.resume()
        return self._rollouts

    @contextmanager
    def other_rollouts(self, config: RolloutConfig, policy_path: Path, documents: Sequence[Document]) -> Iterator[Rollouts]:
        """Run engines and environments with other settings for this block, after stopping the home's own."""
        self.stop_engines()
        try:
            yield self._start(config, policy_path, documents)
        finally:
            self.stop_engines()

    def _start(self, config: RolloutConfig, policy_path: Path, documents: Sequence[Document]) -> Rollouts:
        rollouts = self._begin(config, policy_path)
        rollouts.open(documents)
        return rollouts

    def _begin(self, config: RolloutConfig, policy_path: Path) -> Rollouts:
        from rl.rollouts.rollout import Rollouts  # imports Ray and transformers

        self._rollouts = rollouts = Rollouts.begin(config, policy_path)
        self.restrict()  # after the assignment, so that a concurrent request reaches them either way
        self._last_figures = None
        return rollouts

    def rest_engines(self) -> None:
        """Pause sampling and free memory according to `engine.sleep_level` until the next call of `rollouts`."""
        if self._rollouts is not None:
            self._rollouts.pause()

    def start_ray(self) -> None:
        """Start or connect to Ray, with CPUs for everything that any stage reserves."""
        if self._ray is None:
            from rl.ray_runtime import RayRuntime

            self._ray = RayRuntime(self.config.rollout.ray, reserved_cpus(self.config))

    @property
    def running(self) -> Rollouts:
        """Return the running engines and environments without loading weights. Raise RuntimeError if none run."""
        if self._rollouts is None:
            raise RuntimeError("no engines are running; `rollouts` starts them")
        return self._rollouts

    def folder(self, policy: Policy) -> Path:
        """Return the folder of a policy's weights. The lake stores it relative to the home, so that homes can be moved."""
        return self.home.root / policy.path

    def policy(self, policy_id: str) -> Policy:
        """Return a policy by id. Raise RequestError, which lists the existing ones, if it is unknown."""
        return policy_of(self.lake, policy_id)

    def champion(self, before: int | None = None) -> Policy | None:
        """Return the policy promoted last, or last before an iteration."""
        return champion_of(self.lake, before)

    def stop_engines(self) -> None:
        """Stop engines, environments and Ray. The next stage that needs them starts new ones."""
        if self._rollouts is not None:
            rollouts, self._rollouts = self._rollouts, None
            rollouts.close()
        if self._ray is not None:
            ray, self._ray = self._ray, None
            ray.close()

    def close(self) -> None:
        self.stop_engines()
        self.judges.close()
        self.lake.close()


_open: dict[Path, RunContext] = {}


def is_open(root: Path) -> bool:
    return root.resolve() in _open


@contextmanager
def open_context(root: Path, patience_seconds: float = 0.0) -> Iterator[RunContext]:
    """Open the home at `root`; nested flows share the outermost context. Only one process may hold a home.

    Raises:
        RequestError: There is no home.
        HomeBusy: Another process held it for `patience_seconds`.
    """
    root = root.resolve()
    if root in _open:
        yield _open[root]
        return
    home = Home(root)
    config = with_repositories(home.load(), home)
    with exclusive(root / "lock", patience_seconds):
        context = RunContext(home, config, Lake(root, storage=None if config.lake == LOCAL else config.lake))
        _open[root] = context
        listener = RequestListener(
            home.requests, context.control, context.restrict, lambda row: context.lake.add([row]), context.work_facts
        )
        writer = ProgressWriter(home.progress, context.progress, show_status)
        try:
            yield context
        finally:
            writer.close()
            listener.close()
            del _open[root]
            context.close()
