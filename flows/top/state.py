"""What `flywheel top` shows, as a value: read from the lake and from the record that the process at work writes. Nothing is written.

Both are read without a lock, so that looking never holds up a run. The lake is asked in small queries; documents, turns and tokens are not
touched. How long a stage and the wheel will still take follows from the steps that were made, and from what a stage took before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.config import FlywheelConfig
from flows.home import Home
from flows.operations.control import Progress, StageProgress, read_progress
from flows.plan import Step, gate_id, steps
from rl.supervised.config import SupervisedConfig
from warehouse import Lake

RECENT = 10
"""Steps over which a figure's recent mean is taken."""


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of the plan: `state` as in its run, or to do, or left out; `seconds` what it took, where it is done."""

    run: str
    stage: str
    wheel_turn: int
    state: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the stage at work: its last value, and its mean over the last ten steps that the lake has."""

    name: str
    last: float
    recent: float


@dataclass(frozen=True, slots=True)
class BesideEvaluation:
    """The latest evaluation of a suite beside the training at work; `first_version` and `last_version` are those of its tokens."""

    suite: str
    version: int
    tasks: int
    invalid: int
    success: float | None
    first_version: int | None
    last_version: int | None


@dataclass(frozen=True, slots=True)
class Remaining:
    """Seconds that are left; `unknown` names what could not be estimated and comes on top. None where nothing could be."""

    seconds: float | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A wheel at one moment, `now` in seconds since 1970."""

    home: str
    now: float
    turns: int
    stages: tuple[StageState, ...]
    progress: Progress | None
    figures: tuple[Figure, ...]
    trajectories: int
    """Those that the stage at work has put into the lake, or all of them where none is."""
    invalid: int
    warnings: tuple[str, ...]
    """Limits on metrics that the stage's run broke, the latest first."""
    left: Remaining
    wheel: Remaining
    beside: tuple[BesideEvaluation, ...] = ()

    @property
    def at_work(self) -> StageProgress | None:
        """The stage at work; None where the record of it is stale."""
        return self.progress.stage if self.progress and not self.progress.is_stale(self.now) else None


class Watcher:
    """Looks at a home; keeps its lake open between looks, which costs less than opening it again."""

    def __init__(self, home: Home, lake: Lake) -> None:
        self._home = home
        self._lake = lake
        self._config: FlywheelConfig = home.load()

    def look(self) -> State:
        """The state of the home at this moment."""
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
            figures=self._figures(working),
            trajectories=trajectories,
            invalid=invalid,
            warnings=tuple(row["reason"] for row in self._rows(_WARNINGS, [working.run])) if working else (),
            left=left,
            wheel=wheel_left([(state.stage, state.state, state.seconds) for state in plan], left),
            beside=tuple(BesideEvaluation(**row) for row in self._rows(_BESIDE, [working.run])) if working else (),
        )

    def _figures(self, working: StageProgress | None) -> tuple[Figure, ...]:
        """The figures of the stage's last step, the newest from the process itself, and what they were of late in the lake."""
        if working is None:
            return ()
        recent = {row["name"]: row["recent"] for row in self._rows(_RECENT, [working.run, RECENT])}
        return tuple(Figure(name, value, recent.get(name, value)) for name, value in working.figures.items())

    def _trajectories(self, working: StageProgress | None) -> tuple[int, int]:
        """Trajectories and how many of them are invalid: of the stage at work if it makes any, else of the whole home."""
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

_BESIDE = """
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
    """The stages of the wheel in their order, and after them what runs beside it: other curricula, sampling, single evaluations."""
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
    """The stage of a planned step and its turn, as `runs` will have them."""
    if step.kind == "evaluation":
        return f"eval {step.arguments['suite']}", int(str(step.arguments["policy"]).split("-")[0][1:])
    stage = step.arguments.get("stage", {"synthesis": "synth"}.get(step.kind, str(step.kind)))
    return stage, 0 if stage == "init" else step.arguments["turn"]


def stage_left(stage: StageProgress | None, config: FlywheelConfig, now: float) -> Remaining:
    """What is left of the stage at work, at the rate of the steps that its process has made so far; unknown before the second."""
    if stage is None:
        return Remaining(0.0)
    total = stage_steps(stage, config)
    made = (stage.step or 0) - stage.first_step
    if total is None or stage.step is None or made < 1:
        return Remaining(None, (stage.run,))
    return Remaining(max(0.0, (now - stage.began) / made * (total - stage.step)))


def stage_steps(stage: StageProgress, config: FlywheelConfig) -> int | None:
    """The steps of a stage in all; those of CPT and SFT follow from the part of an epoch that is behind them, and from `max_tokens`."""
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
    """What is left of the wheel. `stages` are (stage, state, seconds it took) in their order.

    A stage that is to do is held to take what the last of its name took; one that never ran is unknown.
    """
    took = {stage: seconds for stage, state, seconds in stages if state == "done" and seconds is not None}
    waiting = [stage for stage, state, _ in stages if state in ("to do", "stopped", "failed")]
    unknown = tuple(dict.fromkeys(stage for stage in waiting if stage not in took))
    known = sum(took.get(stage, 0.0) for stage in waiting)
    return Remaining((of_stage.seconds or 0.0) + known, (*of_stage.unknown, *unknown))
