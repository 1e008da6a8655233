"""The order of the stages: what `turns` turns of the wheel consist of, how each is called, and which of it a home has done already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from flows.config import FlywheelConfig
from flows.home import Home
from warehouse import Lake
from warehouse.digests import digest

WHEEL_ROLLOUTS = "stage = 'rl' AND policy = format('t{}-rl', wheel_turn)"
"""Condition on trajectories: sampled in training by the wheel itself, not for a horizon that was only compared."""


SynthesisKind = Literal["all", "webshaper", "fas", "has", "toolworld"]
"""What synthesis makes: all of a turn, or one kind alone."""


class Kind(StrEnum):
    """What a step of the wheel is; there is a flow for each."""

    SYNTHESIS = "synthesis"
    TRAINING = "training"
    EVALUATION = "evaluation"
    GATE = "gate"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: the turn it belongs to, the id of its run in the lake, its kind, and what its flow takes beside the home."""

    turn: int
    run_id: str
    kind: Kind
    arguments: dict[str, Any] = field(default_factory=dict)


def synthesis_id(turn: int, kind: SynthesisKind = "all") -> str:
    """The id of the run that makes questions and examples of a turn, or one kind of them alone."""
    return f"t{turn}-synth" + ("" if kind == "all" else f"-{kind}")


def policy_id(turn: int, stage: str, variant: str = "") -> str:
    """The id of a training run and of the policy that it makes, also the name of its folder."""
    return f"t{turn}-{stage}" + (f"-{variant}" if variant else "")


def suite_label(suite: str, occasion: str = "") -> str:
    """The name that an evaluation bears in the lake: the suite's, or the suite's on an occasion."""
    return f"{suite}@{occasion}" if occasion else suite


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
        yield from turn_steps(config, turn)


def turn_steps(config: FlywheelConfig, turn: int) -> Iterator[Step]:
    """The stages of one turn, the gate last."""
    synthesis = Step(turn, synthesis_id(turn), Kind.SYNTHESIS, {"turn": turn})
    if turn > 1:
        yield synthesis
    else:
        first = policy_id(0, "init")
        init = Step(turn, first, Kind.TRAINING, {"stage": "init", "turn": 0})
        # One from scratch has its tokenizer from the text; engines of any other start while that is made.
        yield from (synthesis, init) if config.policy.path is None else (init, synthesis)
        if "cpt" not in config.wheel.stages or not config.policy.only_reads:  # what it knows already, the others are measured against
            yield from _evaluations(turn, first, config.evaluation.suites)
    for stage in config.wheel.stages:
        policy = policy_id(turn, stage)
        yield Step(turn, policy, Kind.TRAINING, {"stage": stage, "turn": turn})
        last = stage == config.wheel.stages[-1]
        yield from _evaluations(turn, policy, config.evaluation.all_suites if last else config.evaluation.suites)
    yield Step(turn, gate_id(turn), Kind.GATE, {"turn": turn})


def _evaluations(turn: int, policy: str, suites: Iterable[str]) -> Iterator[Step]:
    for suite in suites:
        yield Step(turn, evaluation_id(policy, suite), Kind.EVALUATION, {"policy": policy, "suite": suite})


def completed(home: Home) -> set[str]:
    """The ids of the runs that a home has done."""
    if not (home.root / "lake").is_dir():
        return set()
    with Lake(home.root, read_only=True) as lake:
        return {run.id for run in lake.runs("state = 'completed'")}


def reopen(lake: Lake, run_id: str) -> None:
    """Have a completed run go on when it is asked for again, because there is more to do than there was."""
    lake.replace([replace(run, state="failed") for run in lake.runs("id = ? AND state = 'completed'", [run_id])])


def is_done(done: set[str], turns: int) -> bool:
    """Whether the last turn's gate has spoken; `done` are the runs that are completed, here and below."""
    return gate_id(turns) in done


def has_begun(done: set[str]) -> bool:
    """Whether the home has its first policy."""
    return policy_id(0, "init") in done


def next_turn(done: set[str]) -> int:
    """The first turn whose gate has not spoken."""
    turn = 1
    while gate_id(turn) in done:
        turn += 1
    return turn


def missing_policies(done: set[str], config: FlywheelConfig) -> list[str]:
    """The stages of the next iteration whose policy is still to be made, `init` among them."""
    left: list[str] = [stage for stage in config.wheel.stages if policy_id(next_turn(done), stage) not in done]
    return left if has_begun(done) else ["init", *left]


def turns_to_synthesise(done: set[str], turns: int) -> list[int]:
    """The turns of which synthesis has something left to make."""
    return [turn for turn in range(1, turns + 1) if not {synthesis_id(turn), gate_id(turn)} & done]


def plan(done: set[str], config: FlywheelConfig, turns: int) -> list[dict[str, str]]:
    """Each stage with `done`, `to do`, or `left out` where its turn ended without it."""
    return [{"stage": step.run_id, "state": _state(step, done)} for step in steps(config, turns)]


def _state(step: Step, done: set[str]) -> str:
    if step.run_id in done:
        return "done"
    return "left out" if gate_id(step.turn) in done else "to do"
