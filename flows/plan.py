"""The order of the stages: what `turns` turns of the wheel consist of, and which of it a home has done already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flows.config import FlywheelConfig
from flows.home import Home
from warehouse import Lake


class Kind(StrEnum):
    """What a step of the wheel is; there is a flow for each."""

    SYNTHESIS = "synthesis"
    TRAINING = "training"
    EVALUATION = "evaluation"
    GATE = "gate"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: the id of its run in the lake, its kind, and the arguments that its flow takes beside the home."""

    run_id: str
    kind: Kind
    arguments: dict[str, Any] = field(default_factory=dict)


def steps(config: FlywheelConfig, turns: int) -> Iterator[Step]:
    """The stages of `turns` turns of the wheel, in order."""
    for turn in range(1, turns + 1):
        yield Step(f"t{turn}-synth", Kind.SYNTHESIS, {"turn": turn})
        if turn == 1:
            yield _training(0, "init")
        for stage in ("cpt", "sft", "rl"):
            training = _training(turn, stage)
            yield training
            for suite in config.evaluation.suites:
                yield Step(f"eval-{training.run_id}-{suite}", Kind.EVALUATION, {"policy": training.run_id, "suite": suite})
        yield Step(f"t{turn}-gate", Kind.GATE, {"turn": turn})


def _training(turn: int, stage: str) -> Step:
    return Step(f"t{turn}-{stage}", Kind.TRAINING, {"stage": stage, "turn": turn})


def plan(home: Home, config: FlywheelConfig, turns: int) -> list[dict[str, str]]:
    """Each stage with `done` or `to do`."""
    done: set[str] = set()
    if (home.root / "lake").is_dir():
        with Lake(home.root, read_only=True) as lake:
            done = {run.id for run in lake.runs("state = 'completed'")}
    return [{"stage": step.run_id, "state": "done" if step.run_id in done else "to do"} for step in steps(config, turns)]
