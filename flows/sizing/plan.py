"""The plan of a configuration as a value: cards, disk, times, what holds a step up, and what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flows.config import FlywheelConfig
from flows.placement import phases, place_phase
from flows.preflight import disk_needed
from flows.sizing.assumptions import Assumptions
from flows.sizing.cards import Card, cards, shares
from flows.sizing.disk import bytes_written
from flows.sizing.times import StageTime, sequences_at_once, times
from rl.hardware import GIB, Architecture
from rl.placement import Machine
from warehouse.errors import RequestError

MOST_SHARE = 0.5
"""Share of a step from which on a part is said to hold it up."""


@dataclass(frozen=True, slots=True)
class SizingPlan:
    """What a configuration will take."""

    policy: Architecture
    assumptions: Assumptions
    cards: list[Card]
    stages: list[StageTime]
    disk: int
    """Bytes of the home at the fullest moment of an iteration, the lake left out."""
    written: dict[str, int]
    """Bytes that an iteration writes, the lake left out, by what they are."""
    at_once: tuple[int, int]
    """Trajectories that an engine is given at a time, and that its cache holds."""
    reservations: dict[str, list[str]]
    """What each phase reserves of Ray."""
    no_room: str | None
    """What finds no room on the machines that were named."""
    changes: list[str]

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "policy": {**asdict(self.policy), "parameters": self.policy.parameters},
            "assumptions": asdict(self.assumptions),
            "cards": [{**asdict(card), "total": card.total, "fits": card.fits} for card in self.cards],
            "stages": [{**asdict(stage), "step_seconds": stage.step_seconds} for stage in self.stages],
            "disk": self.disk,
            "written": self.written,
            "sequences": {"given": self.at_once[0], "held": self.at_once[1]},
            "reservations": self.reservations,
            "no_room": self.no_room,
            "changes": self.changes,
        }


def plan_of(config: FlywheelConfig, assumptions: Assumptions, machines: Sequence[Machine] = ()) -> SizingPlan:
    """The plan of the first iteration; without `machines` nothing is placed.

    Raises:
        RequestError: the policy's sizes cannot be read.
    """
    policy = architecture_of(config)
    found, stages, at_once = (
        cards(policy, config, assumptions),
        times(policy, config, assumptions),
        sequences_at_once(policy, config, assumptions),
    )
    no_room = _no_room(config, machines)
    return SizingPlan(
        policy,
        assumptions,
        found,
        stages,
        sum(disk_needed(config, policy.parameters).values()),
        bytes_written(policy, config, stages),
        at_once,
        {phase.name: [str(each) for each in phase.reservations if each.bundles] for phase in phases(config)},
        no_room,
        [*([no_room] if no_room else []), *_changes(config, found, stages, at_once)],
    )


def architecture_of(config: FlywheelConfig) -> Architecture:
    """The sizes of the first policy. Raises RequestError where its config.json does not say them."""
    folder = config.policy.folder
    if folder is None:
        return Architecture.of_policy(config.policy)
    file = folder / "config.json"
    if not file.is_file():
        raise RequestError(f"policy.path: there is no {file}; name the folder of a model, of which `flywheel plan` reads the sizes alone.")
    try:
        return Architecture.of_config(json.loads(file.read_text()))
    except ValueError as error:
        raise RequestError(f"policy.path: {file} cannot be planned for: {error}; name another model.") from error


def _no_room(config: FlywheelConfig, machines: Sequence[Machine]) -> str | None:
    try:
        for phase in phases(config) if machines else ():
            place_phase(phase, machines)
    except RequestError as error:
        return str(error)
    return None


def _changes(config: FlywheelConfig, found: Sequence[Card], stages: Sequence[StageTime], at_once: tuple[int, int]) -> Iterator[str]:
    """What to change, the impossible first."""
    for card in found:
        if not card.fits:
            yield _to_make_fit(card, config)
    given, held = at_once
    if config.rollout.engine.gpus and held < given:
        yield f"an engine's cache holds {held} trajectories and it is given {given}: raise rollout.engine.kv_cache_gib"
    for stage in stages:
        yield from _to_make_faster(stage, config)


def _to_make_fit(card: Card, config: FlywheelConfig) -> str:
    """What to do about a card that is too full, by what is largest on it."""
    largest = max((name for name in card.parts if name != "overhead"), key=lambda name: card.parts[name])
    stage = next((stage for stage in config.wheel.stages if card.name.endswith(stage)), "rl")
    pass_key = f"{stage}.trajectories_per_pass" if stage == "rl" else f"{stage}.rows_per_pass or .max_example_tokens"
    advice = {
        "engine, cache": "lower rollout.engine.kv_cache_gib",
        "engine, weights": "raise rollout.engine.tensor_parallel",
        "engine, activations": "lower rollout.engine.max_batched_tokens or .max_num_seqs",
        "learner, activations": (
            f"set {stage}.gradient_checkpointing = true, then {stage}.activation_offloading, or lower {pass_key} or "
            "rollout.limits.max_context_tokens"
        ),
        "learner, logits": f"lower {pass_key}",
    }.get(largest, f"set {stage}.lora, or share the states out by {stage}.learner.workers and .sharded")
    missing = (card.total - (card.limit or 0)) / GIB
    return f"{card.name}: {missing:.1f} GiB too much, most of all «{largest}»: {advice}"


def _to_make_faster(stage: StageTime, config: FlywheelConfig) -> Iterator[str]:
    whole = stage.step_seconds
    if stage.stage != "rl" or stage.seconds is None or whole is None:
        return
    sampled = stage.seconds["sampling"] + stage.seconds["reading"]
    if stage.seconds["weights"] > MOST_SHARE * whole:
        faster = "put the home on a faster disk, send them (rollout.engine.transfer)" if config.rollout.engine.transfer == "files" else ""
        yield "weights on their way take most of a step: " + ", or ".join(filter(None, (faster, "make larger steps (rl.tasks_per_step)")))
    elif sampled > MOST_SHARE * whole:
        more = (
            ""
            if config.rl.mode != "synchronous" or config.rollout.engine.sleep_level
            else ", or let them run ahead (rl.mode = one_step_off)"
        )
        yield f"rollouts hold the step up: more engines (rollout.engine.count) or more at once on each{more}"
    elif stage.seconds["learning"] > MOST_SHARE * whole:
        more = "a card of its own" if shares(config, "rl", config.for_turn(1)) else "more rl.learner.workers"
        yield f"the learner holds the step up: {more}, or no rl.gradient_checkpointing where activations fit"
