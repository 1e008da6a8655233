"""The configuration of whatever learns: AdamW or Muon, precision, attention, adapters, and the processes that it learns in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

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
