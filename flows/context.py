"""An open home, as the stages share it: its configuration, its lake, its engines. Opened once, used by every flow inside.

Engines start when the first stage needs them, or beside the stages before it (`begin_engines`), and stay for the rest: a stage that follows
loads its weights into them. While a home is open, its context reports what is at work in it (`flows/progress.py`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.graders.choice import JUDGE, Verifiers, asks_judge
from flows.config import FlywheelConfig
from flows.home import Home, exclusive
from flows.judges import HomeJudges, check_judge
from flows.lakes import champion_of, policy_of
from flows.operations.control import Control
from flows.operations.requests import RequestListener
from flows.placement import reserved_cpus
from flows.plan import policy_id
from flows.progress import Progress, ProgressWriter
from flows.status_line import show_status
from synth.parts import CPT_KINDS, SFT_KINDS
from warehouse import Document, Lake, Policy, Task
from warehouse.errors import RequestError
from warehouse.storage import LOCAL

if TYPE_CHECKING:
    from flows.stage_run import StageRun
    from rl.engines.base import PoolFigures
    from rl.ray_runtime import RayRuntime
    from rl.rollouts.config import RolloutConfig
    from rl.rollouts.rollout import Rollouts


log = logging.getLogger("flywheel")


@dataclass(slots=True)
class RunContext:
    """What every stage of an open home is given."""

    home: Home
    config: FlywheelConfig
    lake: Lake
    _rollouts: Rollouts | None = field(default=None)
    turns: int | None = None
    """How many turns the wheel is to make, where a wheel it is."""
    _at_work: StageRun | None = field(default=None)
    _last_figures: PoolFigures | None = field(default=None)
    _ray: RayRuntime | None = field(default=None)
    judges: HomeJudges = field(init=False)
    control: Control = field(default_factory=Control)
    """What people have asked of this process: to stand still, to run fewer trajectories side by side."""

    def __post_init__(self) -> None:
        self.judges = HomeJudges(self.config.evaluation.judge, self.lake)

    def verifiers(self, default: str | None = None, listed: Mapping[str, str] | None = None, tasks: Iterable[Task] = ()) -> Verifiers:
        """Those that judge the home's tasks, as the configuration opens them; the judge among them where `default` or a task asks for it.

        Raises:
            RequestError: there is no such verifier, no model for the judge, or it is not fit to judge.
        """
        evaluation = self.config.evaluation
        if (default or evaluation.verifier) == JUDGE or asks_judge(tasks):
            check_judge(evaluation.judge)
            return evaluation.open_verifiers(default, listed, self.judges.of_answers)
        return evaluation.open_verifiers(default, listed)

    def calibrate(self) -> None:
        """Calibrate the judges that the configuration asks for, before any other work. Raises RequestError where one is not fit."""
        if self.config.asks_judge is None:
            return
        self.verifiers()
        for turn in (1, 2):
            rewards = self.config.for_turn(turn).rl.rewards
            self.verifiers(rewards.verifier)
            if rewards.judges_turns:
                _ = self.judges.of_turns

    def watch(self, run: StageRun) -> StageRun:
        """Report this stage's progress from now on, and have it heed what is asked, before it begins too; returns it."""
        self._at_work = run
        run.heed(self.control)
        return run

    def restrict(self) -> None:
        """Have the rollouts admit as many trajectories as was asked; may be called from any thread."""
        rollouts = self._rollouts
        if rollouts is not None:
            with suppress(RuntimeError):  # they are closed in this moment
                rollouts.admit(self.control.state.admitted)

    def work_facts(self) -> dict[str, Any]:
        """The run at work and its step, where there is one."""
        run = self._at_work
        return {} if run is None else {"run": run.id, "step": run.step}

    def progress(self) -> Progress:
        """What is at work at this moment."""
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
        """Have the home's engines start with its first policy while a stage that needs none is at work; `rollouts` waits for them.

        Nothing happens before there is a policy, or where the learner may want what engines take: on a GPU, or with `engine.sleep_level`.
        """
        engine, first = self.config.rollout.engine, policy_id(0, "init")
        if self._rollouts is None and not (engine.gpus or engine.sleep_level) and self.lake.runs("id = ? AND state = 'completed'", [first]):
            try:
                self.start_ray()
            except ConnectionError as error:  # the stage that needs them tries again, as after any fault
                log.warning("engines do not start beside the stages before: %s", error)
                return
            self._begin(self.config.rollout, self.home.policies / first)

    def rollouts(self, policy_path: Path) -> Rollouts:
        """The engines and environments, with the policy in `policy_path` loaded."""
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
        """Engines and environments of other settings than the home's, for this block; the home's own make room for them."""
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
        from rl.rollouts.rollout import Rollouts  # Ray and transformers: not before engines are wanted

        self._rollouts = rollouts = Rollouts.begin(config, policy_path)
        self.restrict()  # after they can be found: a request that comes now is heard here or there
        self._last_figures = None
        return rollouts

    def rest_engines(self) -> None:
        """Stop sampling while a learner has its turn, and give back what `engine.sleep_level` says, until `rollouts` is called again."""
        if self._rollouts is not None:
            self._rollouts.pause()

    def start_ray(self) -> None:
        """Start Ray, or connect to it, with room for all that any stage reserves; engines and learners then find it there."""
        if self._ray is None:
            from rl.ray_runtime import RayRuntime

            self._ray = RayRuntime(self.config.rollout.ray, reserved_cpus(self.config))

    @property
    def running(self) -> Rollouts:
        """The engines and environments, with whatever weights they have."""
        if self._rollouts is None:
            raise RuntimeError("engines are started by `rollouts`")
        return self._rollouts

    def folder(self, policy: Policy) -> Path:
        """Where a policy's weights lie; the lake stores it relative to the home, so that a home can be moved."""
        return self.home.root / policy.path

    def policy(self, policy_id: str) -> Policy:
        """The policy of that id. Raises RequestError, naming those that exist, where there is none."""
        return policy_of(self.lake, policy_id)

    def champion(self, before: int | None = None) -> Policy | None:
        """The policy that was promoted last, or last before a turn; None where there is none yet."""
        return champion_of(self.lake, before)

    def check_examples(self, stage: str, turn: int) -> None:
        """Check that a turn has examples for CPT or SFT; RL learns from none.

        Raises RequestError where what the stage's `from` names brought none.
        """
        settings = self.config.for_turn(turn)
        needed = {"cpt": (CPT_KINDS, settings.cpt.sources), "sft": (SFT_KINDS, settings.sft.sources)}
        if stage not in needed:
            return
        kinds, sources = needed[stage]
        sql = "SELECT count(*) AS n FROM examples WHERE wheel_turn = ? AND list_contains(?, kind)"
        if not self.lake.query(sql, [turn, list(kinds)]).column("n")[0].as_py():
            raise RequestError(
                f"{policy_id(turn, stage)} has nothing to train on: {stage}.from names {', '.join(sources)}, and that brought no example "
                f"(a policy without a success has none of its own): name another source beside it. What was dropped, and why: "
                f'flywheel sql "SELECT kind, reason, count(*) FROM failures GROUP BY ALL" --home {self.home.root}'
            )

    def stop_engines(self) -> None:
        """Stop engines, environments and Ray; the next stage that needs them starts new ones."""
        if self._rollouts is not None:
            rollouts, self._rollouts = self._rollouts, None
            rollouts.close()
        if self._ray is not None:
            ray, self._ray = self._ray, None
            ray.close()

    def close(self) -> None:
        """Stop engines and environments, close the lake."""
        self.stop_engines()
        self.judges.close()
        self.lake.close()


_open: dict[Path, RunContext] = {}


def is_open(root: Path) -> bool:
    """Whether this process has the home at `root` open."""
    return root.resolve() in _open


@contextmanager
def open_context(root: Path, patience_seconds: float = 0.0) -> Iterator[RunContext]:
    """The home at `root`, opened: by the outermost flow for all the flows inside it. One process at a time may hold it.

    Raises:
        RequestError: there is no home.
        HomeBusy: another process is at work in it, and was for `patience_seconds`.
    """
    root = root.resolve()
    if root in _open:
        yield _open[root]
        return
    home = Home(root)
    config = home.load()
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
