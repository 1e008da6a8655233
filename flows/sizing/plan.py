"""Estimate a configuration's memory per card, disk, and tokens and time per step, and suggest changes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flows.config import FlywheelConfig, TrainingStage, TurnConfig
from flows.placement import phases, place_phase
from flows.preflight import OPTIMISER_STATES, disk_needed
from rl.hardware import (
    FLOAT32,
    GIB,
    TERA,
    Architecture,
    Device,
    EngineMemory,
    LearnerMemory,
    Pass,
    adapter_parameters,
    bytes_of,
    cache_bytes,
    engine_memory,
    forward_flops,
    learner_memory,
    trained_matrices,
    training_flops,
)
from rl.learner.config import OptimizerConfig, ReinforceConfig
from rl.placement import Machine
from rl.rollouts.config import RolloutConfig
from rl.supervised.config import SupervisedConfig
from warehouse.errors import RequestError


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions of the estimate: the card, its utilization, and the size of a trajectory. Options change them, and the result prints
    them.
    """

    device: Device | None
    """The card; None without GPUs."""
    host_gib: float | None = None
    """Host memory in GiB shared by CPU processes; None: unknown."""
    learner_share: float = 0.3
    """Model FLOP utilization of the learner."""
    prefill_share: float = 0.4
    """Model FLOP utilization of prefill."""
    decode_share: float = 0.6
    """Memory bandwidth utilization of decoding."""
    write_gigabytes: float = 1.0
    """Disk bandwidth for weights in GB/s."""
    send_gigabytes: float = 5.0
    """Network bandwidth for weights in GB/s."""
    overhead_gib: float = 2.0
    """GiB per process on a card: CUDA context, communication, graphs, allocator."""
    prompt_tokens: int = 400
    turns: int = 5
    action_tokens: int = 64
    """Mean tokens per action."""
    observation_tokens: int = 256
    """Mean tokens per observation."""

    @property
    def card(self) -> Device:
        """The card. Raises RequestError if none was named."""
        if self.device is None:
            raise RequestError("the profile reserves GPUs: choose the card with --device.")
        return self.device

    @property
    def trajectory_tokens(self) -> int:
        return self.prompt_tokens + self.turns * (self.action_tokens + self.observation_tokens)


def assumed(
    settings: TurnConfig,
    rollout: RolloutConfig,
    device: Device | None,
    turns: int | None = None,
    action_tokens: int | None = None,
    observation_tokens: int | None = None,
) -> Assumptions:
    """Default assumptions: the longest horizon, a quarter of the action limit and half of the observation limit, within the context."""
    limits = rollout.limits
    action = action_tokens or max(1, limits.max_action_tokens // 4)
    observation = observation_tokens or max(1, limits.max_observation_tokens // 2)
    prompt = min(400, limits.max_context_tokens // 4)
    room = max(1, (limits.max_context_tokens - prompt) // (action + observation))
    wanted = turns or max(settings.rl.horizon.rounds)
    return Assumptions(device, prompt_tokens=prompt, turns=min(wanted, room), action_tokens=action, observation_tokens=observation)


@dataclass(frozen=True, slots=True)
class Card:
    """Bytes that processes hold at once on one card, or in host memory."""

    name: str
    device: str
    parts: dict[str, int]
    limit: int | None

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the parts fit, or the limit is unknown."""
        return self.limit is None or self.total <= self.limit


def cards(policy: Architecture, config: FlywheelConfig, assumptions: Assumptions) -> list[Card]:
    """Estimate each kind of card in the first iteration."""
    settings, engine = config.for_turn(1), _engine(policy, config)
    found = []
    for stage in config.wheel.stages:
        learner = learner_of(policy, stage, settings, config)
        if shares(config, stage, settings):
            found += _shared(stage, engine, learner, config, assumptions)
        else:
            on_gpu = bool(getattr(settings, stage).learner.gpus)
            found.append(_card(f"learner of {stage}", _parts(learner), on_gpu, assumptions))
    if not any(shares(config, stage, settings) for stage in config.wheel.stages):
        found.insert(0, _card("engine", _named(asdict(engine), "engine"), bool(config.rollout.engine.gpus), assumptions))
    return found


def shares(config: FlywheelConfig, stage: TrainingStage, settings: TurnConfig) -> bool:
    """Return whether a learner shares an engine's card."""
    engine, learner = config.rollout.engine, getattr(settings, stage).learner
    return 0 < engine.gpus < 1 and 0 < learner.gpus < 1


def learner_of(policy: Architecture, stage: TrainingStage, settings: TurnConfig, config: FlywheelConfig) -> LearnerMemory:
    """Estimate the memory of a learner's worker at the longest contexts."""
    own: OptimizerConfig = getattr(settings, stage)
    tokens = _tokens_of_pass(own, config)
    work = Pass(tokens, tokens, computes_in_bfloat16(own), own.gradient_checkpointing, own.activation_offloading)
    shards, replicas = (own.learner.workers, 1) if own.learner.sharded else (1, own.learner.workers)
    critic = isinstance(own, ReinforceConfig) and own.has_critic
    return learner_memory(policy, work, shards, own.lora.rank if own.lora else None, bool(own.learner.gpus), critic, replicas)


def computes_in_bfloat16(own: OptimizerConfig) -> bool:
    """Return whether a learner computes in bfloat16; `auto` does on GPUs."""
    return own.precision == "bfloat16" or (own.precision == "auto" and bool(own.learner.gpus))


def engine_bytes(config: FlywheelConfig) -> int:
    """Bytes per number in an engine's weights and cache."""
    return bytes_of(config.rollout.engine.own_dtype)


def _tokens_of_pass(own: OptimizerConfig, config: FlywheelConfig) -> int:
    if isinstance(own, ReinforceConfig):
        return own.trajectories_per_pass * config.rollout.limits.max_context_tokens
    assert isinstance(own, SupervisedConfig)
    return own.rows_per_pass * max(own.row_tokens, own.max_example_tokens)


def _engine(policy: Architecture, config: FlywheelConfig) -> EngineMemory:
    engine = config.rollout.engine
    cache = int(engine.kv_cache_gib * GIB)
    sizes = (engine.tensor_parallel, cache, engine.max_batched_tokens, engine.max_num_seqs, engine.adapter_rank)
    return engine_memory(policy, engine_bytes(config), *sizes)


def _shared(
    stage: TrainingStage, engine: EngineMemory, learner: LearnerMemory, config: FlywheelConfig, assumptions: Assumptions
) -> list[Card]:
    """Estimate the card during the learner's turn and, in RL, the engine's turn."""
    awake = _named(asdict(engine), "engine")
    asleep = {} if config.rollout.engine.sleep_level else awake
    found = [_card(f"shared card, learner's turn in {stage}", {**_parts(learner), **asleep}, True, assumptions, processes=2)]
    if stage == "rl":
        resting = {"learner, weights": learner.weights, "learner, optimiser": learner.optimiser}
        found.append(_card("shared card, engine's turn in rl", {**awake, **resting}, True, assumptions, processes=2))
    return found


def _parts(learner: LearnerMemory) -> dict[str, int]:
    return _named(asdict(learner), "learner")


def _named(parts: dict[str, int], owner: str) -> dict[str, int]:
    return {f"{owner}, {name}": size for name, size in parts.items()}


def _card(name: str, parts: dict[str, int], on_gpu: bool, assumptions: Assumptions, processes: int = 1) -> Card:
    if not on_gpu:
        return Card(name, "host memory", parts, None if assumptions.host_gib is None else int(assumptions.host_gib * GIB))
    overhead = int(processes * assumptions.overhead_gib * GIB)
    return Card(name, assumptions.card.name, {**parts, "overhead": overhead}, int(assumptions.card.memory_gib * GIB))


GIGA = 1e9


@dataclass(frozen=True, slots=True)
class StageTime:
    """A step of a stage: tokens, and seconds by activity (None: unknown)."""

    stage: TrainingStage
    steps: int | None
    tokens: int
    seconds: dict[str, float] | None
    overlapping: bool = False
    """Whether rollouts and learning overlap."""

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step; None if unknown."""
        if self.seconds is None:
            return None
        if not self.overlapping:
            return sum(self.seconds.values())
        sampled = self.seconds["sampling"] + self.seconds["reading"]
        return max(sampled, self.seconds["learning"]) + self.seconds["weights"]


def times(policy: Architecture, config: FlywheelConfig, assumptions: Assumptions) -> list[StageTime]:
    """Estimate the stages of the first iteration; seconds are unknown on CPUs."""
    settings = config.for_turn(1)
    return [
        _reinforce(policy, config, settings, assumptions) if stage == "rl" else _supervised(policy, stage, settings, assumptions)
        for stage in config.wheel.stages
    ]


def sequences_at_once(policy: Architecture, config: FlywheelConfig, assumptions: Assumptions) -> tuple[int, int]:
    """Return the concurrent trajectories per engine: those requested, and those that its cache holds at their mean length."""
    engine, rl = config.rollout.engine, config.for_turn(1).rl
    given = min(config.rollout.concurrency, rl.tasks_per_step * rl.samples_per_task) / engine.count
    each = cache_bytes(policy, engine_bytes(config), engine.tensor_parallel) * assumptions.trajectory_tokens
    return max(1, min(engine.max_num_seqs, math.ceil(given))), max(1, int(engine.kv_cache_gib * GIB // each))


def _supervised(policy: Architecture, stage: TrainingStage, settings: TurnConfig, assumptions: Assumptions) -> StageTime:
    own: SupervisedConfig = getattr(settings, stage)
    tokens = own.rows_per_step * own.row_tokens
    steps = own.steps_of_epochs(math.ceil(_demonstrated(settings, assumptions) / tokens)) if stage == "sft" else None
    seconds = _learning(policy, own, tokens, own.row_tokens / 2, assumptions)
    return StageTime(stage, steps, tokens, None if seconds is None else {"learning": seconds})


def _demonstrated(settings: TurnConfig, assumptions: Assumptions) -> float:
    """Tokens of the oracle's demonstrations: each hop is a search with its result."""
    wanted = settings.synth.demonstration_questions.wanted()
    each = assumptions.action_tokens + assumptions.observation_tokens
    return sum(count * (assumptions.prompt_tokens + hops * each + assumptions.action_tokens) for hops, count in wanted.items())


def _reinforce(policy: Architecture, config: FlywheelConfig, settings: TurnConfig, assumptions: Assumptions) -> StageTime:
    own, engine = settings.rl, config.rollout.engine
    trajectories = own.tasks_per_step * own.samples_per_task
    tokens = trajectories * assumptions.trajectory_tokens
    learning = _learning(policy, own, tokens * own.epochs, assumptions.trajectory_tokens / 2, assumptions)
    if learning is not None and (own.has_critic or own.correction.needed):
        scoring = forward_flops(policy.matrices, policy.layers, policy.width, assumptions.trajectory_tokens / 2)
        learning += _on_learner(tokens * scoring, own, assumptions)  # one more forward pass before the step
    if learning is None or not engine.gpus:
        return StageTime("rl", own.steps, tokens, None)
    device = assumptions.card
    given, held = sequences_at_once(policy, config, assumptions)
    at_once, size = min(given, held), engine_bytes(config)
    acted = trajectories * assumptions.turns * assumptions.action_tokens
    read = own.tasks_per_step * assumptions.prompt_tokens + trajectories * assumptions.turns * assumptions.observation_tokens
    context = at_once * assumptions.trajectory_tokens / 2 * cache_bytes(policy, size)
    moved = (size * policy.parameters + context) / engine.tensor_parallel
    steps = acted / (engine.count * at_once)
    # Engines that share a card with a learner use all of it in their turn.
    cards = engine.count * engine.tensor_parallel
    seconds = {
        "sampling": steps * moved / (device.bandwidth * GIGA * assumptions.decode_share),
        "reading": 2 * policy.matrices * read / (cards * device.teraflops * TERA * assumptions.prefill_share),
        "learning": learning,
        "weights": _publishing(published_bytes(policy, config, settings), engine.transfer, assumptions),
    }
    return StageTime("rl", own.steps, tokens, seconds, overlapping=own.mode != "synchronous" and not shares(config, "rl", settings))


def published_bytes(policy: Architecture, config: FlywheelConfig, settings: TurnConfig) -> int:
    """Bytes of a published version: the policy, or its adapters."""
    lora = settings.rl.lora
    numbers = policy.parameters if lora is None or config.rollout.engine.adapter_rank is None else adapter_parameters(policy, lora.rank)
    return engine_bytes(config) * numbers


def _publishing(size: int, transfer: str, assumptions: Assumptions) -> float:
    """Seconds to write and read, or send, a version."""
    if transfer == "files":
        return 2 * size / (assumptions.write_gigabytes * GIGA)
    return size / (assumptions.send_gigabytes * GIGA)


def _learning(policy: Architecture, own: OptimizerConfig, tokens: float, context: float, assumptions: Assumptions) -> float | None:
    """Seconds to train on `tokens` tokens; None on CPUs."""
    if not own.learner.gpus:
        return None
    trained = trained_matrices(policy, own.lora.rank if own.lora else None)
    flops = training_flops(policy.matrices, trained, policy.layers, policy.width, context)
    if own.gradient_checkpointing:
        flops += forward_flops(policy.matrices, policy.layers, policy.width, context)
    return _on_learner(tokens * flops, own, assumptions)


def _on_learner(flops: float, own: OptimizerConfig, assumptions: Assumptions) -> float:
    return flops / (own.learner.workers * assumptions.card.teraflops * TERA * assumptions.learner_share)


def bytes_written(policy: Architecture, config: FlywheelConfig, stages: Sequence[StageTime]) -> dict[str, int]:
    """Bytes written in the first iteration by stages of known length, without the lake and checkpoints by `save_minutes`."""
    settings = config.for_turn(1)
    written = {"policies": FLOAT32 * policy.parameters, "checkpoints": 0, "published weights": 0}
    for stage in stages:
        own: OptimizerConfig = getattr(settings, stage.stage)
        steps = stage.steps or 0
        trained = policy.parameters if own.lora is None else adapter_parameters(policy, own.lora.rank)
        written["policies"] += bytes_of(own.policy_dtype) * policy.parameters
        written["checkpoints"] += math.ceil(steps / own.save_every) * (1 + OPTIMISER_STATES) * FLOAT32 * trained
        if stage.stage == "rl":
            versions = steps + 1 if config.rollout.engine.transfer == "files" else max(steps - 1, 0) // own.save_every
            written["published weights"] += versions * published_bytes(policy, config, settings)
    return written


MOST_SHARE = 0.5
"""Share of a step above which a part counts as the bottleneck."""


@dataclass(frozen=True, slots=True)
class SizingPlan:
    """Resources of a configuration, and advice.

    `disk` is the peak size of the home and `written` the bytes written in an iteration, both without the lake. `at_once` holds the
    concurrent trajectories requested of an engine and those that its cache holds.
    """

    policy: Architecture
    assumptions: Assumptions
    cards: list[Card]
    stages: list[StageTime]
    disk: int
    written: dict[str, int]
    at_once: tuple[int, int]
    reservations: dict[str, list[str]]
    no_room: str | None
    changes: list[str]

    def record(self) -> dict[str, Any]:
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
    """Plan the first iteration, with placement on `machines` if given. Raise RequestError if the policy's sizes cannot be read."""
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
    """Return the sizes of the first policy. Raise RequestError if its config.json lacks them."""
    folder = config.policy.folder
    if folder is None:
        return Architecture.of_policy(config.policy)
    file = folder / "config.json"
    if not file.is_file():
        raise RequestError(f"policy.path: there is no {file}; choose the folder of a model, of which `flywheel plan` reads only the sizes.")
    try:
        return Architecture.of_config(json.loads(file.read_text()))
    except ValueError as error:
        raise RequestError(f"policy.path: {file} cannot be used for planning: {error}; choose another model.") from error


def _no_room(config: FlywheelConfig, machines: Sequence[Machine]) -> str | None:
    try:
        for phase in phases(config) if machines else ():
            place_phase(phase, machines)
    except RequestError as error:
        return str(error)
    return None


def _changes(config: FlywheelConfig, found: Sequence[Card], stages: Sequence[StageTime], at_once: tuple[int, int]) -> Iterator[str]:
    """Yield advice, starting with what does not fit."""
    for card in found:
        if not card.fits:
            yield _to_make_fit(card, config)
    given, held = at_once
    if config.rollout.engine.gpus and held < given:
        yield f"an engine's cache fits {held} trajectories, and the engine gets {given}: raise rollout.engine.kv_cache_gib"
    for stage in stages:
        yield from _to_make_faster(stage, config)


def _to_make_fit(card: Card, config: FlywheelConfig) -> str:
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
    }.get(largest, f"set {stage}.lora, or shard the states with {stage}.learner.workers and .sharded")
    missing = (card.total - (card.limit or 0)) / GIB
    return f"{card.name}: {missing:.1f} GiB too much, largest part «{largest}»: {advice}"


def _to_make_faster(stage: StageTime, config: FlywheelConfig) -> Iterator[str]:
    whole = stage.step_seconds
    if stage.stage != "rl" or stage.seconds is None or whole is None:
        return
    sampled = stage.seconds["sampling"] + stage.seconds["reading"]
    if stage.seconds["weights"] > MOST_SHARE * whole:
        faster = (
            "use a faster disk for the home, send weights (rollout.engine.transfer)" if config.rollout.engine.transfer == "files" else ""
        )
        yield "weight transfer takes most of a step: " + ", or ".join(filter(None, (faster, "use larger steps (rl.tasks_per_step)")))
    elif sampled > MOST_SHARE * whole:
        more = (
            ""
            if config.rl.mode != "synchronous" or config.rollout.engine.sleep_level
            else ", or let them run ahead (rl.mode = one_step_off)"
        )
        yield f"rollouts are the bottleneck: use more engines (rollout.engine.count) or more trajectories on each{more}"
    elif stage.seconds["learning"] > MOST_SHARE * whole:
        more = "give it its own card" if shares(config, "rl", config.for_turn(1)) else "raise rl.learner.workers"
        yield f"the learner is the bottleneck: {more}, or turn off rl.gradient_checkpointing if activations fit"
