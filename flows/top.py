"""`flywheel top`: a live view of a run, from the lake and the progress record. Reads without a lock and writes nothing."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.config import FlywheelConfig
from flows.home import Home
from flows.lakes import open_lake
from flows.operations.control import ControlState, Progress, StageProgress, position, read_progress
from flows.plan import Step, gate_id, steps
from flows.screen import Screen
from flows.status_line import progress_bar
from rl.engines.base import PoolFigures
from rl.env_pool.circuit_breaker import EnvironmentPoolFigures, FaultFigures
from rl.supervised.config import SupervisedConfig
from rl.terminal import Interrupts, in_line
from warehouse import Lake

RECENT = 10
"""Number of steps in a metric's recent mean."""


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of the plan. `state` is that of its run, `to do`, or `left out`; `seconds` only if it is completed."""

    run: str
    stage: str
    wheel_turn: int
    state: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class LatestMetric:
    """A metric of the running stage: last value, and mean over the last `RECENT` stored steps."""

    name: str
    last: float
    recent: float


@dataclass(frozen=True, slots=True)
class LatestEvaluation:
    """The latest evaluation of a suite during training; `first_version` and `last_version` are the policy versions that sampled it."""

    suite: str
    version: int
    tasks: int
    invalid: int
    success: float | None
    first_version: int | None
    last_version: int | None


@dataclass(frozen=True, slots=True)
class Remaining:
    """Estimated seconds left, without the `unknown` parts; None if there is no estimate."""

    seconds: float | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """State of a run at the time `now`, in seconds since the epoch.

    `trajectories` counts those of the running stage, or all. `warnings` are the violated metric limits of the running stage, or else the
    errors of failed runs, latest first.
    """

    home: str
    now: float
    turns: int
    stages: tuple[StageState, ...]
    progress: Progress | None
    metrics: tuple[LatestMetric, ...]
    trajectories: int
    invalid: int
    warnings: tuple[str, ...]
    left: Remaining
    wheel: Remaining
    evaluations: tuple[LatestEvaluation, ...] = ()

    @property
    def at_work(self) -> StageProgress | None:
        """The running stage; None if its record is stale."""
        return self.progress.stage if self.progress and not self.progress.is_stale(self.now) else None


class Watcher:
    """Reads the state of a home, keeping its lake open."""

    def __init__(self, home: Home, lake: Lake) -> None:
        self._home = home
        self._lake = lake
        self._config: FlywheelConfig = home.load()

    def look(self) -> State:
        now = time.time()
        progress = read_progress(self._home.progress)
        runs = {row["id"]: row for row in self._rows(_RUNS)}
        turns = max([progress.turns or 1 if progress else 1, *(row["wheel_turn"] for row in runs.values())])
        working = progress.stage if progress and not progress.is_stale(now) else None
        plan = [_stage_state(step, runs, working, now) for step in _planned(self._config, turns, runs)]
        trajectories, invalid = self._trajectories(working)
        left = stage_left(working, self._config, now)
        return State(
            home=str(self._home.root),
            now=now,
            turns=turns,
            stages=tuple(plan),
            progress=progress,
            metrics=self._metrics(working),
            trajectories=trajectories,
            invalid=invalid,
            warnings=tuple(row["reason"] for row in (self._rows(_WARNINGS, [working.run]) if working else self._rows(_STOPPED))),
            left=left,
            wheel=wheel_left([(state.stage, state.state, state.seconds) for state in plan], left),
            evaluations=tuple(LatestEvaluation(**row) for row in self._rows(_EVALUATIONS, [working.run])) if working else (),
        )

    def _metrics(self, working: StageProgress | None) -> tuple[LatestMetric, ...]:
        if working is None:
            return ()
        recent = {row["name"]: row["recent"] for row in self._rows(_RECENT, [working.run, RECENT])}
        return tuple(LatestMetric(name, value, recent.get(name, value)) for name, value in working.figures.items())

    def _trajectories(self, working: StageProgress | None) -> tuple[int, int]:
        pattern = f"{working.run}-" if working and working.stage in ("rl", "rollout") else ""
        (row,) = self._rows(_COUNTS, [pattern])
        return row["trajectories"], row["invalid"]

    def _rows(self, sql: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._lake.query(sql, parameters or []).to_pylist()
        return found


_RUNS = "SELECT id, stage, wheel_turn, state, started, finished FROM runs ORDER BY started, id"

_WARNINGS = """
SELECT reason FROM failures WHERE starts_with(kind, 'sign_') AND (item->>'run') = ? ORDER BY (item->>'step')::INT DESC LIMIT 3
"""

_STOPPED = """
SELECT format('{} failed: {}', id, figures->>'error') AS reason FROM runs WHERE state = 'failed' ORDER BY finished DESC LIMIT 3
"""

_EVALUATIONS = """
SELECT suite, version, tasks, invalid, success, first_version, last_version FROM evaluations_beside WHERE run = ?
QUALIFY row_number() OVER (PARTITION BY suite ORDER BY version DESC) = 1 ORDER BY suite
"""

_RECENT = """
SELECT name, avg(value) AS recent FROM (
    SELECT name, value FROM metrics WHERE run_id = ? QUALIFY row_number() OVER (PARTITION BY name ORDER BY step DESC) <= ?
) GROUP BY name
"""

_COUNTS = """
SELECT count(*) AS trajectories, count(*) FILTER (outcome = 'invalid') AS invalid FROM trajectories
WHERE stage IN ('rl', 'eval', 'rollout') AND starts_with(id, ?)
"""


def _planned(config: FlywheelConfig, turns: int, runs: Mapping[str, dict[str, Any]]) -> list[Step | dict[str, Any]]:
    """The planned stages, followed by other runs: variants, sampling, single evaluations."""
    wheel = list(steps(config, turns))
    planned = {step.run_id for step in wheel}
    return [*wheel, *(row for row in runs.values() if row["id"] not in planned)]


def _stage_state(step: Step | dict[str, Any], runs: Mapping[str, dict[str, Any]], working: StageProgress | None, now: float) -> StageState:
    run_id = step.run_id if isinstance(step, Step) else step["id"]
    stage, turn = _name(step) if isinstance(step, Step) else (step["id"], step["wheel_turn"])
    row = runs.get(run_id)
    if working is not None and working.run == run_id:
        return StageState(run_id, stage, turn, "running", None)
    if row is None:
        gate = runs.get(gate_id(step.turn)) if isinstance(step, Step) else None
        return StageState(run_id, stage, turn, "left out" if gate and gate["state"] == "completed" else "to do", None)
    state = {"completed": "done", "running": "stopped"}.get(row["state"], row["state"])
    seconds = (row["finished"] - row["started"]).total_seconds() if state == "done" and row["finished"] else None
    return StageState(run_id, stage, turn, state, seconds)


def _name(step: Step) -> tuple[str, int]:
    """Stage and iteration of a planned step, as in `runs`."""
    if step.kind == "evaluation":
        return f"eval {step.arguments['suite']}", int(str(step.arguments["policy"]).split("-")[0][1:])
    stage = step.arguments.get("stage", {"synthesis": "synth"}.get(step.kind, str(step.kind)))
    return stage, 0 if stage == "init" else step.arguments["turn"]


def stage_left(stage: StageProgress | None, config: FlywheelConfig, now: float) -> Remaining:
    """Time left in the running stage at its rate so far; unknown before the second step."""
    if stage is None:
        return Remaining(0.0)
    total = stage_steps(stage, config)
    made = (stage.step or 0) - stage.first_step
    if total is None or stage.step is None or made < 1:
        return Remaining(None, (stage.run,))
    return Remaining(max(0.0, (now - stage.began) / made * (total - stage.step)))


def stage_steps(stage: StageProgress, config: FlywheelConfig) -> int | None:
    """Total steps of a stage; for CPT and SFT estimated from the epoch so far and `max_tokens`."""
    if stage.steps is not None or stage.stage not in ("cpt", "sft"):
        return stage.steps
    turn = config.for_turn(max(1, stage.wheel_turn))
    settings: SupervisedConfig = turn.cpt if stage.stage == "cpt" else turn.sft
    epoch = stage.figures.get("epoch")
    if not epoch or not stage.step:
        return None
    total = settings.steps_of_epochs(math.ceil(round(stage.step / epoch, 6)))  # each epoch ends with a whole step
    if settings.max_tokens is not None:
        total = min(total, settings.max_tokens // (settings.rows_per_step * settings.row_tokens))
    return max(total, stage.step)


def wheel_left(stages: Sequence[tuple[str, str, float | None]], of_stage: Remaining) -> Remaining:
    """Time left in the run. `stages` are (stage, state, seconds taken), in order.

    Each remaining stage is expected to take as long as the last one of its name; a stage that never ran is unknown.
    """
    took = {stage: seconds for stage, state, seconds in stages if state == "done" and seconds is not None}
    waiting = [stage for stage, state, _ in stages if state in ("to do", "stopped", "failed")]
    unknown = tuple(dict.fromkeys(stage for stage in waiting if stage not in took))
    known = sum(took.get(stage, 0.0) for stage in waiting)
    return Remaining((of_stage.seconds or 0.0) + known, (*of_stage.unknown, *unknown))


SHOWN = (
    "loss", "reward", "success", "horizon", "turns", "hops", "tool_calls", "tool_success", "truncated", "zero_variance", "valid",
    "sampled_entropy", "logprob_difference", "token_mult_prob_error", "grad_norm", "learning_rate", "tokens_per_second",
    "learner_tokens_per_second", "mfu", "share/rollouts", "share/waiting", "share/learning", "share/sync", "learner_memory_gib",
    "concurrency/window", "engine_kv_usage", "step_seconds",
)  # fmt: skip
_MARKS = {
    "done": ("✓", "green"),
    "running": ("▶", "bold cyan"),
    "failed": ("✗", "red"),
    "stopped": ("‖", "yellow"),
    "paused": ("‖", "yellow"),
    "to do": ("·", "dim"),
    "left out": ("–", "dim"),
}


def frame(state: State) -> RenderableType:
    parts: list[RenderableType] = [_headline(state), Text(), _stages(state.stages)]
    if state.at_work is not None:
        parts += [Text(), _stage(state)]
    if state.metrics:
        parts += [Text(), _metrics(state.metrics)]
    if state.evaluations:
        parts += [Text(), *map(_evaluation, state.evaluations)]
    working = state.progress if state.at_work is not None else None
    if working is not None and working.engines is not None:
        parts += [Text(), _engines(working.engines, working.tokens_per_second)]
    if working is not None and working.environment_figures is not None:
        parts += [Text(), _hosting(working.environment_figures)]
    parts += [Text(), _invalid(state), *(Text(f"! {in_line(warning)}", style="yellow") for warning in state.warnings)]
    return Panel(Group(*parts), title=Text(in_line(f"flywheel  {state.home}")), title_align="left", border_style="dim")


def words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def _headline(state: State) -> Text:
    if state.at_work is not None:
        turn = max(1, state.at_work.wheel_turn)
        return Text.assemble((f"iteration {turn} of {state.turns}", "bold"), f"   left: {_left(state.wheel)}", *_asked(state))
    if state.progress is not None and not state.warnings:
        silence = words(state.now - state.progress.written)
        who = f"no update from process {state.progress.process} for {silence}"
        return Text(f"{who}: it was killed, or it hangs; run the same command to resume", "yellow")
    done = all(stage.state in ("done", "left out") for stage in state.stages)
    return Text("finished: nothing is running" if done else "nothing is running; `flywheel run` continues", "green" if done else "yellow")


def _asked(state: State) -> Iterable[tuple[str, str]]:
    control = state.progress.control if state.progress is not None else ControlState()
    if control.paused_since is not None:
        yield f"   paused for {words(max(0.0, state.now - control.paused_since))}: `flywheel resume` continues it", "bold yellow"
    if control.limit is not None:
        yield f"   at most {control.limit:,} concurrent trajectories", "yellow"


def _left(remaining: Remaining) -> str:
    known = words(remaining.seconds) if remaining.seconds else ""
    named = [*remaining.unknown[:4], *(["…"] if len(remaining.unknown) > 4 else [])]
    unknown = f"{', '.join(named)} (not known yet)" if named else ""
    return " + ".join(filter(None, (known, unknown))) or "nothing"


def _stages(stages: Sequence[StageState]) -> Table:
    table = Table.grid(padding=(0, 2))
    for turn in sorted({stage.wheel_turn for stage in stages}):
        line = Text()
        for stage in (stage for stage in stages if stage.wheel_turn == turn):
            mark, style = _MARKS.get(stage.state, ("?", "red"))
            took = "" if stage.seconds is None else f" {words(stage.seconds)}"
            line.append(f"{mark} {stage.stage}", style).append(took, "dim").append("   ")
        table.add_row(Text(f"iteration {turn}", "bold"), line)
    return table


def _stage(state: State) -> Table:
    stage = state.at_work
    assert stage is not None
    table = Table.grid(padding=(0, 2))
    left = "" if stage.step is None else f"left: {_left(state.left)}"
    table.add_row(Text(stage.run, "bold cyan"), Text(position(stage)), Text(progress_bar(stage, state.now)), Text(left))
    return table


def _evaluation(evaluation: LatestEvaluation) -> Text:
    success = "no verdict" if evaluation.success is None else f"success {evaluation.success:.3f}"
    begun, first, last = evaluation.version, evaluation.first_version, evaluation.last_version
    span = "" if first == last == begun else f", sampled by versions {first} to {last}"
    invalid = f", {evaluation.invalid:,} invalid" if evaluation.invalid else ""
    return Text(in_line(f"{evaluation.suite} at version {begun}: {success} of {evaluation.tasks:,} tasks{invalid}{span}"))


def _metrics(metrics: Sequence[LatestMetric]) -> Table:
    known = {metric.name: metric for metric in metrics}
    chosen = [known[name] for name in SHOWN if name in known]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("metric", "now", "last ten") * 2:
        table.add_column(name, justify="left" if name == "metric" else "right")
    for left, right in _pairs(chosen):
        table.add_row(*_cells(left), *_cells(right))
    return table


def _pairs(metrics: Sequence[LatestMetric]) -> Iterable[tuple[LatestMetric, LatestMetric | None]]:
    """Arrange metrics in two columns, read downwards."""
    half = (len(metrics) + 1) // 2
    return [(metrics[row], metrics[row + half] if row + half < len(metrics) else None) for row in range(half)]


def _cells(metric: LatestMetric | None) -> tuple[str, str, str]:
    return ("", "", "") if metric is None else (metric.name, f"{metric.last:.4g}", f"{metric.recent:.4g}")


def _engines(pool: PoolFigures, tokens_per_second: float) -> Table:
    table = _table(("engine", "state", "version", "in flight", "trajectories", "requests", "tokens"))
    for engine in pool.engines:
        numbers = (engine.policy_version, engine.in_flight, engine.trajectories, engine.requests, engine.tokens)
        table.add_row(Text(in_line(engine.name)), engine.state.value, *(f"{number:,}" for number in numbers))
    lost = f", {pool.replacements} replaced, {pool.retaken} requests reissued" if pool.replacements or pool.retaken else ""
    table.caption = f"{tokens_per_second:,.0f} tokens per second{lost}"
    return table


def _hosting(environment_figures: EnvironmentPoolFigures) -> Table:
    table = _table(("environment or tool", "workers", "trajectories", "replaced", "faults"))
    faults = {(figures.kind, figures.name): figures for figures in environment_figures.faults}
    for environment in environment_figures.environments:
        numbers = (environment.workers, environment.trajectories, environment.replaced)
        table.add_row(
            Text(in_line(environment.name)), *(f"{number:,}" for number in numbers), _faults(faults.get(("environment", environment.name)))
        )
    for figures in sorted((f for f in environment_figures.faults if f.kind == "tool"), key=lambda figures: figures.name):
        table.add_row(Text(f"  {in_line(figures.name)}"), "", "", "", _faults(figures))
    table.caption = f"{environment_figures.waiting:,} trajectories have not ended"
    return table


def _faults(figures: FaultFigures | None) -> Text:
    if figures is None:
        return Text("–")
    return Text(f"{figures.faults} of the last {figures.outcomes} {figures.unit}", "red" if figures.faults else "")


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", caption_justify="left", caption_style="dim")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right")
    return table


def _invalid(state: State) -> Text:
    if not state.trajectories:
        return Text("no trajectories yet", "dim")
    share = state.invalid / state.trajectories
    text = f"invalid {100 * share:.1f} %: {state.invalid:,} of {state.trajectories:,} trajectories"
    return Text(text, "bold red" if share > LARGEST_INVALID_SHARE else "")


def watch(root: Path, once: bool, every: float) -> None:
    """Show the run in `root`, once or `every` seconds until interrupted. Raise RequestError without a lake or configuration."""
    console = Screen()
    with open_lake(root) as lake:
        watcher = Watcher(Home(root), lake)
        if once:
            console.print(frame(watcher.look()))
            return
        interrupts = Interrupts(signal.SIGINT)  # acts after a frame, never during a query
        with Live(frame(watcher.look()), console=console, screen=True, auto_refresh=False) as live:
            while not interrupts.wait(every):
                live.update(frame(watcher.look()), refresh=True)
