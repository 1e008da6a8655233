"""What lies on each kind of card, at its fullest: an engine's, a learner's, or both where they share one in turns."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flows.config import FlywheelConfig, TrainingStage, TurnConfig
from flows.sizing.assumptions import Assumptions
from rl.hardware import GIB, Architecture, EngineMemory, LearnerMemory, Pass, bytes_of, engine_memory, learner_memory
from rl.learner.config import OptimizerConfig, ReinforceConfig
from rl.supervised.config import SupervisedConfig


@dataclass(frozen=True, slots=True)
class Card:
    """What a process, or several, hold at once on one card, or of the host's memory where they are on CPUs. All in bytes."""

    name: str
    device: str
    parts: dict[str, int]
    limit: int | None

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether there is room; also where nobody said how much there is."""
        return self.limit is None or self.total <= self.limit


def cards(policy: Architecture, config: FlywheelConfig, assumptions: Assumptions) -> list[Card]:
    """One of each kind, of the first iteration."""
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
    """Whether a learner is meant to lie on an engine's card."""
    engine, learner = config.rollout.engine, getattr(settings, stage).learner
    return 0 < engine.gpus < 1 and 0 < learner.gpus < 1


def learner_of(policy: Architecture, stage: TrainingStage, settings: TurnConfig, config: FlywheelConfig) -> LearnerMemory:
    """A learner's worker, at the longest contexts that there may be."""
    own: OptimizerConfig = getattr(settings, stage)
    tokens = _tokens_of_pass(own, config)
    work = Pass(tokens, tokens, computes_in_bfloat16(own), own.gradient_checkpointing, own.activation_offloading)
    shards, replicas = (own.learner.workers, 1) if own.learner.sharded else (1, own.learner.workers)
    critic = isinstance(own, ReinforceConfig) and own.has_critic
    return learner_memory(policy, work, shards, own.lora.rank if own.lora else None, bool(own.learner.gpus), critic, replicas)


def computes_in_bfloat16(own: OptimizerConfig) -> bool:
    """As far as a configuration says it: `auto` is that on GPUs."""
    return own.precision == "bfloat16" or (own.precision == "auto" and bool(own.learner.gpus))


def engine_bytes(config: FlywheelConfig) -> int:
    """Of a number in an engine's weights and cache."""
    return bytes_of(config.rollout.engine.own_dtype)


def _tokens_of_pass(own: OptimizerConfig, config: FlywheelConfig) -> int:
    """Where all rows of a pass are as long as they may be."""
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
    """The card in the learner's turn and, of RL, in the engine's: the learners of other stages are gone by then."""
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
