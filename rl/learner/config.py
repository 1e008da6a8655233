"""Configuration of learning: optimizer, learner processes, and RL with its filters, critic, off-policy correction and monitor."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl.engines.config import Temperature
from rl.hardware import cpu_has_bfloat16
from rl.placement import Bundle, Reservation
from rl.rewards.config import RewardConfig
from warehouse.errors import RequestError
from warehouse.settings import Section


class LearnerConfig(Section):
    """Where a stage trains: in its own process, or on Ray actors that share each step."""

    workers: PositiveInt = 1
    """Number of data-parallel processes; with 2 or more these are Ray actors, which need a shared file system."""
    cpus: PositiveFloat = 0.5
    """Ray CPUs per worker."""
    gpus: float = Field(default=0, ge=0, le=1)
    """Ray GPUs per worker: 0 trains on CPUs, a fraction below 1 shares the GPU with engines."""
    sharded: bool = False
    """Shard weights, gradients and optimizer state (FSDP)."""

    @property
    def on_ray(self) -> bool:
        """Whether training runs on Ray workers instead of the stage's process."""
        return self.workers > 1 or self.gpus > 0

    @property
    def bundle(self) -> Bundle:
        return Bundle(self.cpus, self.gpus)

    def reservation(self, key: str) -> Reservation:
        """Reservation of all workers; empty if training runs in the stage's process."""
        return Reservation(key, (self.bundle,) * self.workers if self.on_ray else ())

    @model_validator(mode="after")
    def _check_shards(self) -> LearnerConfig:
        if self.sharded and (self.workers == 1 or self.gpus == 0):
            raise ValueError("learner.sharded needs learner.workers > 1 and learner.gpus: accelerate has no FSDP on CPUs")
        if self.workers > 1 and 0 < self.gpus < 1:
            raise ValueError("learner.gpus must be 0 or 1 if learner.workers > 1: NCCL does not support two workers on one GPU")
        return self


class LoraConfig(Section):
    """Train LoRA adapters instead of the weights (arXiv 2106.09685)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveInt = 32
    """Scaling numerator of the adapters; their output is scaled by alpha / rank."""
    layers: tuple[str, ...] = ()
    """Target modules by name suffix, such as `q_proj`; empty: all linear layers except the head."""


Tracker = Literal["trackio", "wandb", "tensorboard", "mlflow"]


class OptimizerConfig(Section):
    """Optimizer, schedule, precision and checkpoints."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """`adamw`, or `muon`: Muon on hidden matrices and AdamW on the rest; needs an unsharded learner."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """Peak learning rate."""
    muon_learning_rate: float = Field(default=0.02, gt=0, le=1)
    """Learning rate of the hidden matrices with `muon`."""
    warmup_steps: NonNegativeInt = 20
    """Steps of linear learning rate warmup."""
    decay_share: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the steps, at the end, over which the learning rate decays linearly to 0."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's beta1."""
    beta2: float = Field(default=0.98, ge=0, lt=1)
    """AdamW's beta2."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are clipped."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute dtype with float32 weights; `auto`: bfloat16 if the hardware supports it (on CPUs only for larger policies)."""
    attn_implementation: Literal["auto", "varlen", "flash_attention_2", "flash_attention_3", "flex_attention", "sdpa", "eager"] = "auto"
    """Attention kernel; `auto`: FlashAttention if installed, else torch's `varlen`, else the model's default. `sdpa` and `eager` pad."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about 20 % more time."""
    activation_offloading: bool = False
    """Keep activations in host memory, for contexts that do not fit on the GPU."""
    learner: LearnerConfig = LearnerConfig()
    lora: LoraConfig | None = None
    """Train LoRA adapters, merged when a policy is written; None trains the weights."""
    save_every: PositiveInt = 200
    """Steps between checkpoints."""
    save_minutes: PositiveFloat | None = None
    """Minutes after which a checkpoint is also due; None: by steps only."""
    policy_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the stored policy; checkpoints keep float32."""
    trackers: tuple[Tracker, ...] = ()
    """Experiment trackers besides the lake; offline in the home's folder `trackers`, unless their environment variables are set."""

    @model_validator(mode="after")
    def _check_optimizer(self) -> OptimizerConfig:
        if self.optimizer == "muon" and self.learner.sharded:
            raise ValueError('optimizer = "muon" needs whole matrices, but learner.sharded splits them among workers: use adamw')
        return self

    @model_validator(mode="after")
    def _check_offloading(self) -> OptimizerConfig:
        if self.activation_offloading and not self.learner.gpus:
            raise ValueError("activation_offloading moves activations from GPU to host memory, but learner.gpus = 0: unset it")
        return self


EstimatorName = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "task_normalized",
    "environment_deviation",
    "process",
    "gae",
    "bilevel_gae",
    "vtrace",
]
CRITICS = frozenset({"gae", "bilevel_gae", "vtrace"})
"""Estimators that need a critic."""


class FilterConfig(Section):
    """Which sampled trajectories are excluded from training; each is a row of `failures`."""

    overlong: bool = False
    """Drop trajectories that hit a limit before they answered (DAPO, arXiv 2503.14476, §3.4)."""
    void_turns: bool = False
    """Drop trajectories with a turn that has neither call nor answer (SimpleTIR, arXiv 2509.02479)."""
    variance: bool = False
    """Drop groups whose rewards are all equal."""
    uncertain_share: float = Field(default=1.0, gt=0, le=1)
    """Fraction of tasks to train on, those with the highest standard deviation of rewards (StarPO-S, arXiv 2504.20073, §4)."""
    refills: NonNegativeInt = 0
    """Maximum rounds of additional sampling until all groups of a step have reward variance (DAPO's dynamic sampling, §3.2)."""
    oversampling: float = Field(default=1.0, ge=1)
    """Maximum factor of oversampling in one round, adapted to the recent fraction of groups with variance; faster than `refills`."""

    def most_groups(self, wanted: int) -> int:
        """Maximum groups that a step may sample to get `wanted` with variance."""
        return math.floor(self.oversampling * wanted) + self.refills * wanted


class CriticConfig(Section):
    """Critic of the estimators `gae`, `bilevel_gae` and `vtrace` (PPO)."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """Learning rate of the value head."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount γ per action token."""
    decay: float = Field(default=1.0, ge=0, le=1)
    """λ of generalized advantage estimation."""
    turn_discount: float = Field(default=0.95, gt=0, le=1)
    """Discount γ per turn in `bilevel_gae`."""
    trust: PositiveFloat = 1.0
    """ρ̄ of `vtrace`: maximum importance ratio of a token's temporal difference."""
    trace: PositiveFloat = 1.0
    """c̄ of `vtrace`: maximum importance ratio of the trace."""
    trunk_gradient: NonNegativeFloat = 0.0
    """Factor on the value loss's gradient into the layers shared with the policy; PPO's code uses 0.5."""
    clip: PositiveFloat = 0.2
    """Clip range of value predictions."""
    warmup_steps: NonNegativeInt = 5
    """Initial steps that train only the critic."""


class CorrectionConfig(Section):
    """Importance correction of off-policy tokens, based on the ratio π / μ of learner to sampler."""

    weights: Literal["auto", "none", "truncated", "masked"] = "auto"
    """Advantage weights: the ratio `truncated` at `above` or `masked` outside [`below`, `above`]; `auto`: `truncated` if dtypes differ."""
    level: Literal["token", "sequence", "mean"] = "token"
    """Compute the ratio per token, per trajectory, or as geometric mean over the trajectory's tokens."""
    below: float = Field(default=0.5, ge=0)
    """Lower bound of the ratio for `masked`."""
    above: PositiveFloat = 2.0
    """Upper bound of the ratio."""
    reject: Literal["token", "sequence", "mean"] | None = None
    """Remove tokens or trajectories whose ratio is outside [`reject_below`, `reject_above`] from the loss; None keeps all."""
    reject_below: float = Field(default=0.5, ge=0)
    """Lower reject bound."""
    reject_above: PositiveFloat = 2.0
    """Upper reject bound."""

    @property
    def needed(self) -> bool:
        """Whether the learner must score rows before the step, which costs a forward pass."""
        return self.weights in ("truncated", "masked") or self.reject is not None


class ReplayConfig(Section):
    """Buffer of groups (trajectories of one task) between rollouts and learner."""

    max_staleness: NonNegativeInt = 2
    """Maximum age of a group in weight versions."""
    stale: Literal["drop", "wait"] = "drop"
    """In asynchronous mode, resample stale groups (`drop`), or have the learner wait for groups about to become stale (`wait`)."""
    capacity: PositiveInt | None = None
    """Maximum number of groups running or waiting; None: as many as can be used before they are stale."""
    reuse: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of a step's groups taken from earlier steps; that many fewer are sampled. Combine with `rl.correction`."""

    def groups(self, per_step: int) -> int:
        """Maximum number of groups running or waiting, for `per_step` groups per step."""
        most = (self.max_staleness + 1) * (per_step - int(self.reuse * per_step))
        return min(most, self.capacity) if self.capacity and self.stale == "wait" else self.capacity or most


class MetricLimit(Section):
    """Limit on a metric; without bounds the metric must only be finite."""

    sign: str
    """Metric name, such as `grad_norm`."""
    below: float | None = None
    """Act if the metric is below this value."""
    above: float | None = None
    """Act if the metric is above this value."""
    falls: PositiveFloat | None = None
    """Act if the metric is this far below its maximum so far."""
    steps: PositiveInt = 1
    """Number of consecutive violations before acting."""
    then: Literal["warn", "pause", "stop"] = "warn"
    """`warn`; `pause`: end the run at a resumable checkpoint; `stop`: fail the run."""


DEFAULT_LIMITS = (
    MetricLimit(sign="loss", then="stop"),
    MetricLimit(sign="grad_norm", above=1e4, steps=3, then="stop"),
    MetricLimit(sign="valid", below=0.5, steps=3, then="pause"),
    MetricLimit(sign="logprob_difference", above=0.5, steps=3),
    MetricLimit(sign="effective_samples", below=0.3, steps=3),
    MetricLimit(sign="correct_logprob", falls=1.0, steps=3),
    MetricLimit(sign="sampled_entropy", below=0.01, steps=5),
    MetricLimit(sign="zero_variance", above=0.95, steps=5),
    MetricLimit(sign="format", below=0.5, steps=5),
    MetricLimit(sign="tool_success", below=0.05, steps=5),
    MetricLimit(sign="tool_errors", above=0.5, steps=3),
    MetricLimit(sign="without_calls", above=0.999),
    MetricLimit(sign="unjudged_tasks", above=0),
    MetricLimit(sign="prompt_information", below=0.05, steps=5),
    MetricLimit(sign="staleness", above=8),
)


class MonitorConfig(Section):
    """Metric limits and diagnostics of RL."""

    limits: tuple[MetricLimit, ...] = DEFAULT_LIMITS
    """Limits on metrics; replaces the default limits."""
    weight_difference: PositiveFloat | None = None
    """Maximum mean difference of engine and learner log-probabilities after a weight update, in nats; None: 0.001 in float32, else 0.2."""
    information_tasks: NonNegativeInt = 4
    """Number of tasks per step whose first actions are scored under each other's prompts, for `prompt_information`; 0 disables it."""


class ReinforceConfig(OptimizerConfig):
    """Policy optimization on groups of trajectories."""

    steps: PositiveInt = 100
    """Number of RL steps."""
    tasks_per_step: PositiveInt = 12
    """Groups (tasks) per step."""
    samples_per_task: int = Field(default=8, ge=2)
    """Group size: trajectories per task."""
    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    warmup_steps: NonNegativeInt = 0
    """Steps of linear learning rate warmup; the first step then has learning rate 0."""
    decay_share: float = Field(default=0.0, ge=0, le=1)
    save_every: PositiveInt = 10
    estimator: EstimatorName = "grpo"
    """Advantage estimator (docs/learning.md)."""
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo"] = "dapo"
    """TRL's policy loss."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Importance ratio per token or sequence; `sequence` with `loss_type = "grpo"` is GSPO."""
    clip_low: PositiveFloat = 0.2
    """Lower clip range of the ratio."""
    clip_high: PositiveFloat = 0.28
    """Upper clip range of the ratio; for `cispo` the maximum ratio itself."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL penalty to the initial policy."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, in nats."""
    mode: Literal["synchronous", "one_step_off", "asynchronous"] = "synchronous"
    """Rollouts and learner alternate, overlap by one step, or run continuously with bounded staleness (`rl.replay`)."""
    older_share: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of actions sampled by the engines of `rollout.engine.older` (cross-policy sampling of AgentRL, arXiv 2510.04206)."""
    replay: ReplayConfig = ReplayConfig()
    correction: CorrectionConfig = CorrectionConfig()
    epochs: PositiveInt = 1
    """Optimizer steps per RL step."""
    mask_observations: bool = True
    """Exclude observations from the loss; set to false only for ablations."""
    temperature: Temperature = Field(default=1.0, gt=0)
    """Sampling temperature of rollouts."""
    trajectories_per_pass: PositiveInt = 16
    """Micro-batch size in trajectories."""
    max_completion_tokens: PositiveInt = 512
    """Normalization length of `dr_grpo`, in tokens."""
    filters: FilterConfig = FilterConfig()
    rewards: RewardConfig = RewardConfig()
    critic: CriticConfig = CriticConfig()
    health: MonitorConfig = MonitorConfig()

    @model_validator(mode="after")
    def _check_clip(self) -> ReinforceConfig:
        if self.loss_type == "cispo" and self.clip_high < 1:
            raise ValueError("rl.loss_type = cispo uses rl.clip_high as the maximum ratio: set at least 1, such as 5")
        return self

    @model_validator(mode="after")
    def _check_observations(self) -> ReinforceConfig:
        if not self.mask_observations and self.has_critic:
            raise ValueError(f"rl.mask_observations = false does not support a critic, but rl.estimator = {self.estimator} has one")
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> ReinforceConfig:
        for name, default in {"refills": 0, "oversampling": 1}.items():
            if self.mode == "asynchronous" and getattr(self.filters, name) != default:
                raise ValueError(
                    f"rl.filters.{name} samples more for a step, but rl.mode = asynchronous has no samples per step: leave it {default}"
                )
        if self.mode == "asynchronous" and self.replay.capacity is not None and self.replay.capacity < self.tasks_per_step:
            raise ValueError("rl.replay.capacity must be at least rl.tasks_per_step, the groups of one step")
        return self

    @model_validator(mode="after")
    def _check_critic(self) -> ReinforceConfig:
        if self.has_critic and self.optimizer == "muon":
            raise ValueError(f"rl.estimator = {self.estimator} has a critic, which is trained with AdamW: set rl.optimizer = adamw")
        return self

    @property
    def has_critic(self) -> bool:
        return self.estimator in CRITICS

    @property
    def passes(self) -> int:
        """Forward and backward passes of each worker per optimizer step."""
        return self.passes_of(self.tasks_per_step * self.samples_per_task)

    @property
    def most_passes(self) -> int:
        """As `passes`, for a step with all groups that its filters may sample."""
        return self.passes_of(self.filters.most_groups(self.tasks_per_step) * self.samples_per_task)

    def passes_of(self, trajectories: int) -> int:
        return math.ceil(trajectories / (self.trajectories_per_pass * self.learner.workers))


Settings = TypeVar("Settings", bound=ReinforceConfig)
BOUNDS = {"float32": 1e-3, "bfloat16": 0.2}
"""Mean absolute difference of log-probabilities, in nats, above which engine and learner weights count as different."""
SMALL_POLICY = 20_000_000
"""Parameter count below which matrices are too small to gain from bfloat16 on a CPU."""


def computes_in_bfloat16(config: OptimizerConfig, parameters: int | None = None) -> bool:
    """Whether the learner computes in bfloat16, for a policy of `parameters` parameters."""
    import torch  # slow to import, and not needed to read a configuration

    if config.precision != "auto":
        return config.precision == "bfloat16"
    if config.learner.gpus:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
    return parameters is not None and parameters >= SMALL_POLICY and cpu_has_bfloat16()


def settled(config: Settings, engine_dtype: str, parameters: int) -> Settings:
    """Resolve the settings that depend on precision: correction weights and the bound of the weight check.

    In float32 engine and learner agree to about 1e-5; in bfloat16 to a few hundredths, which makes rollouts slightly off-policy.

    Args:
        engine_dtype: as in `rollout.engine.dtype`.
        parameters: parameter count of the policy.
    """
    learner = "bfloat16" if computes_in_bfloat16(config, parameters) else "float32"
    changes: dict[str, Any] = {}
    if config.correction.weights == "auto":
        weights = "truncated" if learner != engine_dtype else "none"
        changes["correction"] = config.correction.model_copy(update={"weights": weights})
    if config.health.weight_difference is None:
        both = learner == engine_dtype == "float32"
        bound = BOUNDS["float32" if both else "bfloat16"]
        changes["health"] = config.health.model_copy(update={"weight_difference": bound})
    return config.model_copy(update=changes)


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Raise RequestError if a tracker's package is not installed."""
    for tracker in trackers:
        if importlib.util.find_spec(tracker) is None:
            raise RequestError(f"trackers names {tracker}, but that package is not installed: `pip install {tracker}`, or remove it.")
