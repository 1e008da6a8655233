"""The order of the stages: what `turns` turns of the wheel consist of, how each is called, and which of it a home has done already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from flows.config import FlywheelConfig
from flows.home import Home
from warehouse import Lake
from warehouse.digests import digest

WHEEL_ROLLOUTS = "stage = 'rl' AND policy = format('t{}-rl', wheel_turn)"
"""Condition on trajectories: sampled in training by the wheel itself, not for a horizon that was only compared."""


SynthesisKind = Literal["all", "webshaper", "fas", "has"]
"""What synthesis makes: all of a turn, or one kind alone."""


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


def synthesis_id(turn: int, kind: SynthesisKind = "all") -> str:
    """The id of the run that makes questions and examples of a turn, or one kind of them alone."""
    return f"t{turn}-synth" + ("" if kind == "all" else f"-{kind}")


def policy_id(turn: int, stage: str, variant: str = "") -> str:
    """The id of a training run and of the policy that it makes, also the name of its folder."""
    return f"t{turn}-{stage}" + (f"-{variant}" if variant else "")


def evaluation_id(policy: str, suite: str) -> str:
    """The id of the run that evaluates a policy on a suite."""
    return f"eval-{policy}-{suite}"


def sampling_id(policy: str, wanted: dict[str, Any]) -> str:
    """The id of the run that samples trajectories of a policy: another one for each condition, number, temperature and horizon."""
    return f"rollout-{policy}-{digest(wanted, length=8)}"


def gate_id(turn: int) -> str:
    """The id of the run that promotes a turn's policy or not."""
    return f"t{turn}-gate"


def steps(config: FlywheelConfig, turns: int) -> Iterator[Step]:
    """The stages of `turns` turns of the wheel, in order."""
    for turn in range(1, turns + 1):
        yield Step(synthesis_id(turn), Kind.SYNTHESIS, {"turn": turn})
        if turn == 1:
            yield _training(0, "init")
        for stage in ("cpt", "sft", "rl"):
            training = _training(turn, stage)
            yield training
            for suite in config.evaluation.suites:
                yield Step(evaluation_id(training.run_id, suite), Kind.EVALUATION, {"policy": training.run_id, "suite": suite})
        yield Step(gate_id(turn), Kind.GATE, {"turn": turn})


def _training(turn: int, stage: str) -> Step:
    return Step(policy_id(turn, stage), Kind.TRAINING, {"stage": stage, "turn": turn})


def completed(home: Home) -> set[str]:
    """The ids of the runs that a home has done."""
    if not (home.root / "lake").is_dir():
        return set()
    with Lake(home.root, read_only=True) as lake:
        return {run.id for run in lake.runs("state = 'completed'")}


def plan(home: Home, config: FlywheelConfig, turns: int) -> list[dict[str, str]]:
    """Each stage with `done` or `to do`."""
    done = completed(home)
    return [{"stage": step.run_id, "state": "done" if step.run_id in done else "to do"} for step in steps(config, turns)]
