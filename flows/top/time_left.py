"""How long a stage and the wheel will still take: from the steps that were made, and from what a stage took before. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flows.config import FlywheelConfig
from flows.progress import StageProgress
from rl.config import SupervisedConfig


@dataclass(frozen=True, slots=True)
class Remaining:
    """Seconds that are left; `unknown` names what could not be estimated and comes on top. None where nothing could be."""

    seconds: float | None
    unknown: tuple[str, ...] = ()


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
    total = math.ceil(stage.step * settings.epochs / epoch)
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
