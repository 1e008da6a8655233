"""The configuration of whatever learns: AdamW or Muon, precision, attention, adapters, and the processes that it learns in.

The configuration of reinforcement learning: estimator, loss, filters, critic, replay and the metric monitor.

Which stage of a step computes in which precision, and what follows from it for reinforcement learning.

Log-probabilities of engine and learner agree to some 1e-5 where both compute in float32, and to a few hundredths where either computes in
bfloat16. So a check of the engines' weights has a bound of its own for each, and where the two differ the rollouts are those of a slightly
other policy, which truncated importance sampling accounts for.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl.engines.config import Temperature
from rl.hardware import cpu_has_bfloat16
from rl.rewards.config import RewardConfig
from warehouse.errors import RequestError
from warehouse.settings import Section


class LearnerConfig(Section):
    """Where a stage learns: in the process that runs it, or on Ray actors that share each step."""

    workers: PositiveInt = 1
    """Processes; from 2 on they are Ray's, joined by gloo on CPUs and by NCCL on GPUs, and see the same folders as this one."""
    cpus: PositiveFloat = 0.5
    """What each worker reserves of Ray's CPUs."""
    gpus: float = Field(default=0, ge=0, le=1)
    """What each worker reserves of Ray's GPUs, and the only GPU that it computes on: 0 learns on CPUs, whatever the machine has. Less than
    1 is a share of a card, which engines may have the rest of. With any, also a single worker is Ray's."""
    sharded: bool = False
    """FSDP: each worker keeps a part of weights, gradients and optimiser, not the whole of them."""

    @property
    def on_ray(self) -> bool:
        """Whether it learns on workers of Ray's, and not in the process that runs the stage."""
        return self.workers > 1 or self.gpus > 0

    @model_validator(mode="after")
    def _check_shards(self) -> LearnerConfig:
        if self.sharded and (self.workers == 1 or self.gpus == 0):
            raise ValueError("learner.sharded needs learner.workers > 1 and learner.gpus: accelerate has no FSDP on CPUs")
        if self.workers > 1 and 0 < self.gpus < 1:
            raise ValueError("learner.gpus must be 0 or 1 where learner.workers > 1: NCCL joins no two workers on one card")
        return self


class LoraConfig(Section):
    """Low-rank adapters, which are trained in the place of the weights. arXiv 2106.09685."""

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    """The adapters' product counts alpha / rank times."""
    layers: tuple[str, ...] = ()
    """Ends of the names of the linear layers that get one, such as `q_proj`; none given is all but the head."""


Tracker = Literal["trackio", "wandb", "tensorboard", "mlflow"]


class OptimizerConfig(Section):
    """How weights are changed: AdamW or Muon under warmup, constant rate, decay."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` changes the matrices of the hidden layers by Muon and all the rest by AdamW. For small policies,
    whose learner is not sharded."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    muon_learning_rate: float = Field(default=0.02, gt=0, le=1)
    """Rate of the matrices under `muon`; `learning_rate` is then that of the rest."""
    warmup_steps: NonNegativeInt = 20
    decay_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the steps, at the end, in which the rate falls linearly to nothing."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.98, ge=0, lt=1)
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the forward pass computes in, over float32 weights; `auto` is bfloat16 on a GPU that has it, and on a CPU that has it unless the
    policy is small; else float32."""
    attn_implementation: Literal["auto", "varlen", "flash_attention_2", "flash_attention_3", "flex_attention", "sdpa", "eager"] = "auto"
    """What computes attention. All but the last two join the sequences of a pass into one row, without padding and without a mask of tokens
    times tokens: `varlen` by torch's own kernel, or sequence by sequence on CPUs. `auto`: FlashAttention where it is installed, else
    `varlen`; what the model was loaded with for those that `varlen` is not the attention of."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory for a fifth more time. For large policies."""
    activation_offloading: bool = False
    """Keep what the backward pass needs of the forward pass in the host's memory. With `gradient_checkpointing` that is one state for each
    layer and token, for contexts that the card has no room for."""
    learner: LearnerConfig = LearnerConfig()
    lora: LoraConfig | None = None
    """Train adapters, and merge them into the weights wherever a policy is written; None: train the weights. Embeddings stay as they are:
    tags that the dialect adds to a model's vocabulary must have been trained in a stage before."""
    save_every: PositiveInt = 200
    """Steps between checkpoints."""
    save_minutes: PositiveFloat | None = None
    """Minutes after which a checkpoint is due as well, behind the step that is under way; None: by steps alone."""
    policy_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the policy that a stage leaves is stored in. Checkpoints keep the float32 weights that are trained, so a stage that is resumed
    loses nothing; the stage after it begins from what is stored."""
    trackers: tuple[Tracker, ...] = ()
    """Where figures are reported besides the lake: trackio, wandb, tensorboard, mlflow. Offline, in the home's folder `trackers`, unless
    the tracker's own environment variables say otherwise."""

    @model_validator(mode="after")
    def _check_optimizer(self) -> OptimizerConfig:
        if self.optimizer == "muon" and self.learner.sharded:
            raise ValueError('optimizer = "muon" needs whole matrices, and learner.sharded leaves each worker a part: take adamw')
        return self

    @model_validator(mode="after")
    def _check_offloading(self) -> OptimizerConfig:
        if self.activation_offloading and not self.learner.gpus:
            raise ValueError("activation_offloading brings what a GPU keeps to the host, and learner.gpus = 0 keeps it there anyway")
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
    """What is sampled and not trained on. It stays in the lake, and each drop is a row of `failures`."""

    overlong: bool = False
    """Leave out trajectories that a limit of tokens, turns or time ended before they answered. DAPO, arXiv 2503.14476, §3.4."""
    void_turns: bool = False
    """Leave out trajectories with a turn that holds neither a call nor an answer. SimpleTIR, arXiv 2509.02479."""
    variance: bool = False
    """Leave out groups whose rewards are all equal: they have no gradient, and now no part in the means of the loss either."""
    uncertain_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the tasks, those with the largest deviation of rewards, that is trained on. StarPO-S (RAGEN, arXiv 2504.20073, §4)."""
    refills: NonNegativeInt = 0
    """How many times at most further tasks are sampled until a step has all its groups with variance. DAPO's dynamic sampling, §3.2."""
    oversampling: float = Field(default=1.0, ge=1)
    """How many times the groups of a step are sampled at once at most, where lately so many had no variance; all that have are trained on.
    Side by side they take less time than `refills`, which come one after the other, and those that run ahead none of the learner's."""

    def most_groups(self, wanted: int) -> int:
        """The most groups that a step may sample to have `wanted` with variance."""
        return math.floor(self.oversampling * wanted) + self.refills * wanted


class CriticConfig(Section):
    """The critic, where `rl.estimator` is `gae`, `bilevel_gae` or `vtrace`: PPO."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    discount: float = Field(default=1.0, gt=0, le=1)
    """γ, from one token of the policy to its next."""
    decay: float = Field(default=1.0, ge=0, le=1)
    """λ of generalised advantage estimation."""
    turn_discount: float = Field(default=0.95, gt=0, le=1)
    """Γ of `bilevel_gae`, from turn to turn."""
    trust: PositiveFloat = 1.0
    """ρ̄ of `vtrace`: the highest ratio to what sampled a token that its reward and value are weighed by."""
    trace: PositiveFloat = 1.0
    """c̄ of `vtrace`: the highest ratio that a difference is carried back over a token by."""
    trunk_gradient: NonNegativeFloat = 0.0
    """How much of the gradient of the values' loss goes into the layers that they share with the policy: with 0 the policy learns from its
    own loss alone; 0.5 is how PPO's own code weighs it. None goes there while the critic warms up."""
    clip: PositiveFloat = 0.2
    """How far a value may move from what it was when the step was collected before its gradient stops."""
    warmup_steps: NonNegativeInt = 5
    """Steps at the start in which the critic learns and the policy does not."""


class CorrectionConfig(Section):
    """What is done about tokens that an older policy sampled, by the ratio π / μ of the learner before the step to what sampled them."""

    weights: Literal["auto", "none", "truncated", "masked"] = "auto"
    """Weigh advantages by min(ratio, `above`), or by the ratio within [`below`, `above`] and 0 outside. The loss's own ratio and clip are
    then against the learner before the step; without weights they are against what sampled. `auto` is truncated where engine and learner
    compute in different precision, and none elsewhere."""
    level: Literal["token", "sequence", "mean"] = "token"
    """The ratio of each token, of its whole trajectory, or the geometric mean of that over the trajectory's tokens."""
    below: float = Field(default=0.5, ge=0)
    above: PositiveFloat = 2.0
    reject: Literal["token", "sequence", "mean"] | None = None
    """Take tokens, or whole trajectories, whose ratio lies outside the bounds below out of the loss and of its means."""
    reject_below: float = Field(default=0.5, ge=0)
    reject_above: PositiveFloat = 2.0

    @property
    def needed(self) -> bool:
        """Whether the learner's own log-probabilities must be had before the step: a forward pass more."""
        return self.weights in ("truncated", "masked") or self.reject is not None


class ReplayConfig(Section):
    """The buffer of trajectories between rollouts and learner. Its groups are the trajectories of one task, taken as a whole."""

    max_staleness: NonNegativeInt = 2
    """How many versions of the weights a group may be behind when it is trained on, by the version that it was begun under."""
    stale: Literal["drop", "wait"] = "drop"
    """With `asynchronous`. `drop`: groups are taken as they end, and those that have become too old are dropped and sampled anew.
    `wait`: the learner waits for those that would become too old; none is dropped."""
    capacity: PositiveInt | None = None
    """Groups under way or waiting; None: as many as can be trained on before they are too old. Of those that were trained on, so many
    are kept for `reuse`."""
    reuse: float = Field(default=0.0, ge=0, lt=1)
    """Share of a step's groups that were trained on before, so that as many fewer are sampled. Give it an `rl.correction`."""

    def groups(self, per_step: int) -> int:
        """How many groups may be under way or waiting: what can be trained on in time, or `capacity`."""
        most = (self.max_staleness + 1) * (per_step - int(self.reuse * per_step))
        return min(most, self.capacity) if self.capacity and self.stale == "wait" else self.capacity or most


class MetricLimit(Section):
    """How far a metric of a step may go. Without a bound it must only be a finite number, as every one must."""

    sign: str
    """Name of a figure of the step, such as `grad_norm` or `clip_ratio/region_mean`."""
    below: float | None = None
    above: float | None = None
    falls: PositiveFloat | None = None
    """It may not fall by more than this below the highest value that it has had."""
    steps: PositiveInt = 1
    """Steps in a row that it must be so."""
    then: Literal["warn", "pause", "stop"] = "warn"
    """`pause` ends the run behind a checkpoint from which the same command goes on; `stop` ends it as failed."""


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
    MetricLimit(sign="prompt_information", below=0.05, steps=5),
    MetricLimit(sign="staleness", above=8),
)


class MonitorConfig(Section):
    """The metrics that are watched while a policy learns."""

    limits: tuple[MetricLimit, ...] = DEFAULT_LIMITS
    weight_difference: PositiveFloat | None = None
    """After each update of the weights every engine continues one prompt, and the learner scores what it wrote: the mean difference of
    log-probabilities, in nats, above which the run stops. None: 0.001 where both compute in float32, else 0.2."""
    information_tasks: NonNegativeInt = 4
    """Tasks of a step whose first actions are scored under each other's prompts, the square of it in forward passes; 0 is none."""


class ReinforceConfig(OptimizerConfig):
    """Policy optimisation on groups of trajectories."""

    steps: PositiveInt = 100
    tasks_per_step: PositiveInt = 12
    samples_per_task: int = Field(default=8, ge=2)
    """Trajectories of one task: the group that advantages are taken within."""
    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    warmup_steps: NonNegativeInt = 0
    """With any, the rate of the first step is 0 and its trajectories are wasted."""
    decay_share: float = Field(default=0.0, ge=0, le=1)
    save_every: PositiveInt = 10
    estimator: EstimatorName = "grpo"
    """How rewards become advantages: docs/learning.md has the table."""
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo"] = "dapo"
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """`sequence` with the loss `grpo` is GSPO."""
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.28
    """How far a probability may rise against that of the sampler before its gradient stops; in `cispo` the highest ratio itself."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the policy that training began with."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Weight of the mean entropy over the step's action tokens, in nats, which is taken from the loss."""
    mode: Literal["synchronous", "one_step_off", "asynchronous"] = "synchronous"
    """Rollouts and learner take turns; or the rollouts of a step run while the learner updates on the step before; or rollouts never stop,
    new weights reach them on their way, and the learner takes what is there and not too old."""
    older_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the actions that an older policy samples, of `rollout.engine.older`: AgentRL's cross-policy sampling, arXiv 2510.04206."""
    replay: ReplayConfig = ReplayConfig()
    correction: CorrectionConfig = CorrectionConfig()
    epochs: PositiveInt = 1
    """Optimiser steps on the trajectories of one step."""
    mask_observations: bool = True
    """Leave the tokens of observations out of the loss. False is a defect, there to be measured: benchmarks/ablations.py does."""
    temperature: Temperature = Field(default=1.0, gt=0)
    """That of the engines, whose log-probabilities must be those of the distribution at this temperature."""
    trajectories_per_pass: PositiveInt = 16
    """Trajectories that go through the model at once."""
    max_completion_tokens: PositiveInt = 512
    """What `dr_grpo` divides by in the place of a trajectory's length; nothing is cut at it."""
    filters: FilterConfig = FilterConfig()
    rewards: RewardConfig = RewardConfig()
    critic: CriticConfig = CriticConfig()
    health: MonitorConfig = MonitorConfig()

    @model_validator(mode="after")
    def _check_clip(self) -> ReinforceConfig:
        if self.loss_type == "cispo" and self.clip_high < 1:
            raise ValueError("rl.loss_type = cispo takes rl.clip_high as the highest ratio itself: give at least 1, such as 5")
        return self

    @model_validator(mode="after")
    def _check_observations(self) -> ReinforceConfig:
        if not self.mask_observations and self.has_critic:
            raise ValueError(f"rl.mask_observations = false goes with no critic, and rl.estimator = {self.estimator} has one")
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> ReinforceConfig:
        for name, default in {"refills": 0, "oversampling": 1}.items():
            if self.mode == "asynchronous" and getattr(self.filters, name) != default:
                raise ValueError(
                    f"rl.filters.{name} samples more for a step, and with rl.mode = asynchronous no step has its own: leave it {default}"
                )
        if self.mode == "asynchronous" and self.replay.capacity is not None and self.replay.capacity < self.tasks_per_step:
            raise ValueError("rl.replay.capacity must hold at least the groups of one step, rl.tasks_per_step")
        return self

    @model_validator(mode="after")
    def _check_critic(self) -> ReinforceConfig:
        if self.has_critic and self.optimizer == "muon":
            raise ValueError(f"rl.estimator = {self.estimator} has a critic, which learns by AdamW: leave rl.optimizer at adamw")
        return self

    @property
    def has_critic(self) -> bool:
        """Whether advantages are against one."""
        return self.estimator in CRITICS

    @property
    def passes(self) -> int:
        """Forward and backward passes of an optimiser step, of each of the learner's workers."""
        return self.passes_of(self.tasks_per_step * self.samples_per_task)

    @property
    def most_passes(self) -> int:
        """Those of a step that has all the groups that its filters may sample for it."""
        return self.passes_of(self.filters.most_groups(self.tasks_per_step) * self.samples_per_task)

    def passes_of(self, trajectories: int) -> int:
        """How many passes of each of the learner's workers so many trajectories take."""
        return math.ceil(trajectories / (self.trajectories_per_pass * self.learner.workers))


Settings = TypeVar("Settings", bound=ReinforceConfig)
BOUNDS = {"float32": 1e-3, "bfloat16": 0.2}
"""Mean absolute difference of log-probabilities, in nats, above which an engine has other weights than the learner."""
SMALL_POLICY = 20_000_000
"""Parameters below which matrices are too small for bfloat16 to gain anything on a CPU."""


def computes_in_bfloat16(config: OptimizerConfig, parameters: int | None = None) -> bool:
    """Whether a forward pass of the learner of `config` is one in bfloat16.

    `auto` is that on GPUs, but for those that this machine has and that lack it; and on a CPU that has it (AVX-512 BF16 or AMX) for a
    policy of `parameters` that is not small.
    """
    import torch  # not where a configuration is only read

    if config.precision != "auto":
        return config.precision == "bfloat16"
    if config.learner.gpus:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
    return parameters is not None and parameters >= SMALL_POLICY and cpu_has_bfloat16()


def settled(config: Settings, engine_dtype: str, parameters: int) -> Settings:
    """`config` with what depends on the precision of engine and learner decided: the correction's weights, and the bound of the check.

    Args:
        engine_dtype: as in `rollout.engine.dtype`.
        parameters: of the policy.
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
    """Raises `RequestError` where a tracker's package is not installed."""
    for tracker in trackers:
        if importlib.util.find_spec(tracker) is None:
            raise RequestError(f"trackers names {tracker}, and that package is not installed: `pip install {tracker}`, or leave it out.")
