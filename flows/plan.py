"""The plan: stages of the iterations, their run ids and parents, and which of them a home has completed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from flows.config import TRAINING, FlywheelConfig
from flows.home import Home
from flows.lakes import champion_of, reading
from flows.variants import Variant
from warehouse import Lake
from warehouse.digests import digest

WHEEL_ROLLOUTS = "stage = 'rl' AND policy = format('t{}-rl', wheel_turn)"
"""SQL condition on trajectories sampled by the pipeline's own RL, without variants."""

SynthesisKind = Literal["all", "webshaper", "fas", "has", "toolworld", "bugs"]


class Kind(StrEnum):
    """Kinds of steps; each has a flow."""

    SYNTHESIS = "synthesis"
    TRAINING = "training"
    EVALUATION = "evaluation"
    GATE = "gate"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: its iteration, run id in the lake, kind, and the arguments of its flow except the home."""

    turn: int
    run_id: str
    kind: Kind
    arguments: dict[str, Any] = field(default_factory=dict)


# Run ids. A home has one configuration, so a stage's position in the pipeline identifies its run.


def synthesis_id(turn: int, kind: SynthesisKind = "all") -> str:
    """Id of the run that makes an iteration's questions and examples, or one kind of them."""
    return f"t{turn}-synth" + ("" if kind == "all" else f"-{kind}")


def policy_id(turn: int, stage: str, variant: str = "") -> str:
    """Id of a training run, of the policy that it makes, and of that policy's folder."""
    return f"t{turn}-{stage}" + (f"-{variant}" if variant else "")


def suite_label(suite: str, occasion: str = "") -> str:
    """Name of a suite's evaluation in the lake, with the occasion of a repeated one."""
    return f"{suite}@{occasion}" if occasion else suite


def evaluation_id(policy: str, suite: str) -> str:
    return f"eval-{policy}-{suite}"


def sampling_id(policy: str, wanted: dict[str, Any]) -> str:
    """Id of the run that samples a policy; each condition, number, temperature and horizon has its own."""
    return f"rollout-{policy}-{digest(wanted, length=8)}"


def gate_id(turn: int) -> str:
    return f"t{turn}-gate"


# Steps


def steps(config: FlywheelConfig, turns: int) -> Iterator[Step]:
    """Yield the stages of `turns` iterations, in order."""
    for turn in range(1, turns + 1):
        yield from turn_steps(config, turn)


def turn_steps(config: FlywheelConfig, turn: int) -> Iterator[Step]:
    """Yield the stages of one iteration, with the gate last."""
    synthesis = Step(turn, synthesis_id(turn), Kind.SYNTHESIS, {"turn": turn})
    if turn > 1:
        yield synthesis
    else:
        first = policy_id(0, "init")
        init = Step(turn, first, Kind.TRAINING, {"stage": "init", "turn": 0})
        # A policy from scratch needs the text for its tokenizer. With any other, engines start during synthesis.
        yield from (synthesis, init) if config.policy.path is None else (init, synthesis)
        if "cpt" not in config.wheel.stages or not config.policy.only_reads:  # the baseline
            yield from _evaluations(turn, first, config.evaluation.suites)
    stages = config.for_turn(turn).wheel.stages
    for stage in stages:
        policy = policy_id(turn, stage)
        yield Step(turn, policy, Kind.TRAINING, {"stage": stage, "turn": turn})
        last = stage == stages[-1]
        yield from _evaluations(turn, policy, config.evaluation.all_suites if last else config.evaluation.suites)
    yield Step(turn, gate_id(turn), Kind.GATE, {"turn": turn})


def _evaluations(turn: int, policy: str, suites: Iterable[str]) -> Iterator[Step]:
    for suite in suites:
        yield Step(turn, evaluation_id(policy, suite), Kind.EVALUATION, {"policy": policy, "suite": suite})


def stage_before(config: FlywheelConfig, stage: str, turn: int, variant: str) -> str | None:
    """Return the training stage before `stage` in the same iteration, or None for the first."""
    order = list[str](TRAINING)
    earlier = [each for each in order[: order.index(stage)] if each in config.for_turn(turn).wheel.stages]
    return next((each for each in reversed(earlier) if not (variant == Variant.WITHOUT_CPT and each == "cpt")), None)


def parent_id(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str) -> str:
    """Return the id of a stage's parent policy, existing or not: the stage before it, else the champion, else the first policy."""
    before = stage_before(config, stage, turn, variant)
    if before is not None:
        return policy_id(turn, before, variant if variant == Variant.WITHOUT_CPT else "")
    champion = champion_of(lake, before=turn)
    return champion.id if champion else policy_id(0, "init")


# Progress. `done` holds the ids of completed runs.


def completed(home: Home) -> set[str]:
    with reading(home.root) as lake:
        return completed_in(lake)


def completed_in(lake: Lake | None) -> set[str]:
    return set() if lake is None else {run.id for run in lake.runs("state = 'completed'")}


def reopen(lake: Lake, run_id: str) -> None:
    """Make a completed run resume when it is next requested, because its work has grown."""
    lake.replace([replace(run, state="failed") for run in lake.runs("id = ? AND state = 'completed'", [run_id])])


def is_done(done: set[str], turns: int) -> bool:
    """Return whether the gate of the last iteration has decided."""
    return gate_id(turns) in done


def has_begun(done: set[str]) -> bool:
    """Return whether the home has its first policy."""
    return policy_id(0, "init") in done


def next_turn(done: set[str]) -> int:
    """Return the first iteration whose gate has not decided."""
    turn = 1
    while gate_id(turn) in done:
        turn += 1
    return turn


def missing_policies(done: set[str], config: FlywheelConfig) -> list[str]:
    """Return the stages of the next iteration, including `init`, whose policy is missing."""
    turn = next_turn(done)
    left: list[str] = [stage for stage in config.for_turn(turn).wheel.stages if policy_id(turn, stage) not in done]
    return left if has_begun(done) else ["init", *left]


def turns_to_synthesise(done: set[str], turns: int) -> list[int]:
    return [turn for turn in range(1, turns + 1) if not {synthesis_id(turn), gate_id(turn)} & done]


def plan(done: set[str], config: FlywheelConfig, turns: int) -> list[dict[str, str]]:
    """Return each stage with its state: `done`, `to do`, or `left out` if its iteration ended without it."""
    return [{"stage": step.run_id, "state": _state(step, done)} for step in steps(config, turns)]


def _state(step: Step, done: set[str]) -> str:
    if step.run_id in done:
        return "done"
    return "left out" if gate_id(step.turn) in done else "to do"
