"""Tokens and seconds of a step, by where they go; nothing where the hardware is not in the table (CPUs)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flows.config import FlywheelConfig, TrainingStage, TurnConfig
from flows.sizing.assumptions import Assumptions
from flows.sizing.cards import engine_bytes, shares
from rl.hardware import GIB, TERA, Architecture, adapter_parameters, cache_bytes, forward_flops, trained_matrices, training_flops
from rl.learner.config import OptimizerConfig
from rl.supervised.config import SupervisedConfig

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class StageTime:
    """A step of a stage: its tokens, and seconds by what they are spent on. None: it cannot be said."""

    stage: TrainingStage
    steps: int | None
    tokens: int
    seconds: dict[str, float] | None
    overlapping: bool = False
    """Whether rollouts and learning run at once, so that the longer of them counts."""

    @property
    def step_seconds(self) -> float | None:
        """Of a whole step."""
        if self.seconds is None:
            return None
        if not self.overlapping:
            return sum(self.seconds.values())
        sampled = self.seconds["sampling"] + self.seconds["reading"]
        return max(sampled, self.seconds["learning"]) + self.seconds["weights"]


def times(policy: Architecture, config: FlywheelConfig, assumptions: Assumptions) -> list[StageTime]:
    """Those of the stages of the first iteration."""
    settings = config.for_turn(1)
    return [
        _reinforce(policy, config, settings, assumptions) if stage == "rl" else _supervised(policy, stage, settings, assumptions)
        for stage in config.wheel.stages
    ]


def sequences_at_once(policy: Architecture, config: FlywheelConfig, assumptions: Assumptions) -> tuple[int, int]:
    """Trajectories that one engine samples at a time: as many as it is given, and as many as its cache holds at their mean length."""
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
    """Tokens of the oracle's demonstrations: of one with n hops, a prompt, n searches with what they bring, and an answer."""
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
        learning += _on_learner(tokens * scoring, own, assumptions)  # a forward pass more, before the step
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
    # Engines on one card with a learner have all of it in their turn.
    cards = engine.count * engine.tensor_parallel
    seconds = {
        "sampling": steps * moved / (device.bandwidth * GIGA * assumptions.decode_share),
        "reading": 2 * policy.matrices * read / (cards * device.teraflops * TERA * assumptions.prefill_share),
        "learning": learning,
        "weights": _publishing(published_bytes(policy, config, settings), engine.transfer, assumptions),
    }
    return StageTime("rl", own.steps, tokens, seconds, overlapping=own.mode != "synchronous" and not shares(config, "rl", settings))


def published_bytes(policy: Architecture, config: FlywheelConfig, settings: TurnConfig) -> int:
    """Of one version as engines are given it: the whole policy, or the adapters alone that they serve."""
    lora = settings.rl.lora
    numbers = policy.parameters if lora is None or config.rollout.engine.adapter_rank is None else adapter_parameters(policy, lora.rank)
    return engine_bytes(config) * numbers


def _publishing(size: int, transfer: str, assumptions: Assumptions) -> float:
    """Seconds for a version of so many bytes: written and read, or sent; what checkpoints write is written beside the training."""
    if transfer == "files":
        return 2 * size / (assumptions.write_gigabytes * GIGA)
    return size / (assumptions.send_gigabytes * GIGA)


def _learning(policy: Architecture, own: OptimizerConfig, tokens: float, context: float, assumptions: Assumptions) -> float | None:
    """Seconds of the learner's workers over so many tokens; a forward pass more where activations are computed again. None on CPUs."""
    if not own.learner.gpus:
        return None
    trained = trained_matrices(policy, own.lora.rank if own.lora else None)
    flops = training_flops(policy.matrices, trained, policy.layers, policy.width, context)
    if own.gradient_checkpointing:
        flops += forward_flops(policy.matrices, policy.layers, policy.width, context)
    return _on_learner(tokens * flops, own, assumptions)


def _on_learner(flops: float, own: OptimizerConfig, assumptions: Assumptions) -> float:
    """Seconds of the learner's workers for so many operations."""
    return flops / (own.learner.workers * assumptions.card.teraflops * TERA * assumptions.learner_share)
