"""The configuration of everything in this room: policies, training, engines, environments, rollouts.

It stands apart from the code that it configures because that code imports torch, TRL, Ray or vLLM, and a wrong key must be refused
before any of them is loaded.
"""

from __future__ import annotations

from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from warehouse.settings import Section

PACKAGED = Path(__file__).parent / "policies" / "packaged"
"""The policies that come with the package, a folder each."""


class PolicyConfig(Section):
    """What the first policy is: a local Hugging Face path, one that comes with the package, or a small Qwen3 from scratch."""

    path: str | None = None
    """Folder of a causal language model with its tokenizer, or the name of a policy of the package, such as `reader`; the sizes below
    then have no effect."""
    layers: PositiveInt = 4
    width: PositiveInt = 128
    """Size of the hidden states."""
    heads: PositiveInt = 8
    """Many small heads learn to look up a fact sooner: with 4 of them a policy of this size had not after a million tokens."""
    key_value_heads: PositiveInt = 8
    """Divides `heads`; fewer than `heads` is grouped-query attention."""
    head_size: PositiveInt = 32
    """Width of a head; vLLM on CPUs takes 32, 64 and more."""
    intermediate_size: PositiveInt = 256
    vocabulary_size: PositiveInt = 1500
    tied_embeddings: bool = True
    initializer_range: PositiveFloat = 0.06
    """Standard deviation of the initial weights. With the usual 0.02 a model of this size does not learn to copy in time."""
    max_position_embeddings: PositiveInt = 1024
    rope_theta: PositiveFloat = 1000.0
    """Base of the rotary positions. The usual 10,000 spends half of a small head on distances that its contexts do not have."""

    @property
    def folder(self) -> Path | None:
        """Where the first policy lies; None where it is from scratch."""
        if self.path is None:
            return None
        return PACKAGED / self.path if self.path.isidentifier() and (PACKAGED / self.path).is_dir() else Path(self.path)

    @model_validator(mode="after")
    def _check_heads(self) -> PolicyConfig:
        if self.heads % self.key_value_heads:
            raise ValueError("policy.heads must be a multiple of policy.key_value_heads")
        return self


class LearnerConfig(Section):
    """Where a stage learns: in the process that runs it, or on workers of Ray Train that share each step."""

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
    """How weights are changed: AdamW under warmup, constant rate, decay."""

    learning_rate: PositiveFloat = 1e-3
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
    `varlen`; what the model was loaded with for those that `varlen` is not the attention of, and for small policies on CPUs."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory for a fifth more time. For large policies."""
    activation_offloading: bool = False
    """Keep what the backward pass needs of the forward pass in the host's memory. With `gradient_checkpointing` that is one state for each
    layer and token, for contexts that the card has no room for."""
    learner: LearnerConfig = LearnerConfig()
    lora: LoraConfig | None = None
    """Train adapters, and merge them into the weights wherever a policy is written; None: train the weights."""
    save_every: PositiveInt = 200
    """Steps between checkpoints."""
    trackers: tuple[Tracker, ...] = ()
    """Where figures are reported besides the lake: trackio, wandb, tensorboard, mlflow. Offline, in the home's folder `trackers`, unless
    the tracker's own environment variables say otherwise."""

    @model_validator(mode="after")
    def _check_offloading(self) -> OptimizerConfig:
        if self.activation_offloading and not self.learner.gpus:
            raise ValueError("activation_offloading brings what a GPU keeps to the host, and learner.gpus = 0 keeps it there anyway")
        return self


class SupervisedConfig(OptimizerConfig):
    """Training on examples: how much of them at a time, and for how long."""

    row_tokens: PositiveInt = 256
    """Tokens of a packed row; a longer example stands in a row of its own. Wider rows cost more, for attention is quadratic in them."""
    max_example_tokens: PositiveInt = 1024
    """Longer examples are left out and counted: a cut one would teach to stop in the middle."""
    rows_per_step: PositiveInt = 6
    rows_per_pass: PositiveInt = 6
    """Rows that go through the model at once; divides `rows_per_step`."""
    epochs: PositiveFloat = 1.0
    max_tokens: PositiveInt | None = None
    """Training ends after about this many tokens, padding of rows included, where the epochs have more."""
    log_every: PositiveInt = 10
    """Steps between figures."""
    held_out_share: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of the examples that is not trained on; their loss is measured at each checkpoint. 0: none, and no early stop."""
    patience: PositiveInt = 3
    """Checkpoints in a row without a lower held-out loss that end the training; the policy is then that of the lowest."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` changes the matrices of the hidden layers by Muon and all the rest by AdamW. For policies from scratch."""
    muon_learning_rate: PositiveFloat = 0.02
    """Rate of the matrices under `muon`; `learning_rate` is then that of the rest."""


class GeneralTextConfig(Section):
    """Ordinary text that is read among the agentic one, against forgetting."""

    path: Path
    """A file of rows (.jsonl, .parquet, .csv, .tsv), a folder that `datasets` has saved, or one of Markdown and plain text."""
    column: str = "text"
    """Where rows have their text."""
    share: float = Field(default=0.05, gt=0, lt=1)
    """Share of the tokens of each stage that are general text, as far as there is so much."""
    held_out: PositiveInt = 50
    """Texts that are never trained on: their loss is measured before and after."""


class CptConfig(SupervisedConfig):
    """Continual pre-training; the rate is that of a small policy from scratch."""

    learning_rate: PositiveFloat = 2e-3
    contexts: tuple[PositiveInt, ...] = ()
    """Tokens of the longest example, and of a row, of each stage in turn; a stage reads what the one before could not hold. Empty: one
    stage, by `row_tokens` and `max_example_tokens`."""
    general: GeneralTextConfig | None = None

    @model_validator(mode="after")
    def _check_contexts(self) -> CptConfig:
        if any(later <= earlier for earlier, later in pairwise(self.contexts)):
            raise ValueError(f"contexts must grow from stage to stage, and they are {list(self.contexts)}")
        return self


class ToolMapping(Section):
    """What a tool of somebody else's runs is called here."""

    name: str
    """One of the tools on offer; an empty name takes the runs that call it out."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Our name of each argument by theirs; what is not named keeps its name."""


class StoredRunsConfig(Section):
    """Which stored trajectories become examples, of the imported ones or of all."""

    where: str = "TRUE"
    """SQL condition on the table `trajectories`."""
    tools: dict[str, ToolMapping] = Field(default_factory=dict)
    """Our tools by theirs. Without any, runs keep their own tools, and examples offer these."""
    unjudged: Literal["drop", "keep"] = "drop"
    """Runs that nobody has judged; failures and invalid ones are never taken."""
    per_task: PositiveInt = 1
    """Examples of one task at most, the shortest runs first."""
    count: PositiveInt | None = None
    """Examples at most, drawn at random; None: all."""


class TaughtRunsConfig(Section):
    """How a teacher plays the environment, and what is taken of it."""

    attempts: PositiveInt = 5
    """Runs of each of `synth.demonstration_questions`; the verifier chooses. WebShaper (arXiv 2507.15061) takes five."""
    per_task: PositiveInt = 1
    """Examples of one question at most, the shortest successes first."""
    temperature: NonNegativeFloat = 0.7
    horizon: PositiveInt = 8
    """Turns of a run at most."""
    max_action_tokens: PositiveInt = 512
    """Of one answer of the teacher, in its own tokens."""
    max_observation_characters: PositiveInt = 4_000
    max_context_characters: PositiveInt = 60_000


ColdStart = Literal["oracle", "own", "imported", "rollouts", "teacher"]


class SftConfig(SupervisedConfig):
    """Supervised fine-tuning; the rate is lower than in pre-training, so that what was learnt there stays."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    sources: tuple[ColdStart, ...] = Field(default=("oracle", "own"), alias="from", min_length=1)
    """Whose runs it learns from: the graph's oracle (`synth.demonstrations`), the wheel's own successes of earlier turns, imported runs,
    stored rollouts, a teacher (`synth.teacher`) that plays the environment."""
    imported: StoredRunsConfig = StoredRunsConfig()
    rollouts: StoredRunsConfig = StoredRunsConfig(where="stage = 'rollout'")
    teacher: TaughtRunsConfig = TaughtRunsConfig()
    learning_rate: PositiveFloat = 5e-4
    mask_observations: bool = True
    """Leave prompts and observations out of the loss. False is a defect, there to be measured: benchmarks/ablations.py does."""


CUDA_TRANSFERS = frozenset({"nccl", "ipc"})
"""Transfers of weights that need CUDA on both sides."""


class EngineConfig(Section):
    """Engines: how many, on what, how large."""

    count: PositiveInt = 1
    """Engines side by side, each with the whole policy."""
    older: NonNegativeInt = 0
    """Further engines that hold an older policy, for actions that are asked of one (`rl.older_share`)."""
    older_every: PositiveInt = 25
    """How many versions the policy of those may fall behind before they take the newest. AgentRL's is 25 steps."""
    cpus: NonNegativeFloat = 1
    """What each reserves of Ray's CPUs, all its workers together."""
    gpus: NonNegativeFloat = 0
    """What each reserves of Ray's GPUs, all its workers together: as many as `tensor_parallel`, or less than 1 for a share of a card, of
    which an engine takes no more memory than that."""
    threads: PositiveInt = 1
    """OpenMP threads of each worker on CPUs. A second one gains nothing for a small policy, and where other processes want the
    cores its barriers make the engine 20 times slower (measured)."""
    tensor_parallel: PositiveInt = 1
    """Workers that share the matrices of one engine."""
    workers: Literal["processes", "ray"] = "processes"
    """Where those run: beside the engine on one machine, or as Ray actors of their own, packed together but on several machines where
    one has too few GPUs."""
    dtype: str = "float32"
    max_model_len: PositiveInt | None = None
    """Longest context in tokens; None is what the policy's own configuration says."""
    max_num_seqs: PositiveInt = 128
    """Sequences in one batch."""
    max_batched_tokens: PositiveInt = 8192
    """Tokens in one forward pass."""
    kv_cache_gib: PositiveFloat = 0.5
    """Memory for keys and values, of each worker."""
    block_size: PositiveInt | None = 32
    """Tokens in a block of the cache: a prefix is shared in whole blocks. None leaves it to vLLM."""
    enforce_eager: bool = True
    """No compilation: starts sooner, and is no slower for small policies on CPUs."""
    sleep_mode: bool = False
    """Give GPU memory back while a learner has its turn: for engines and a learner on the same card. Weights wait in host memory."""
    seed: NonNegativeInt = 0
    updates: Literal["keep", "drain"] = "keep"
    """What becomes of requests under way when weights are loaded: they keep their tokens and go on under the new ones, or they end under
    the old ones before."""
    transfer: Literal["files", "gloo", "nccl", "ipc"] = "files"
    """How new weights come from the learner: from the folder that it writes, or before, by vLLM's weight transfer: `gloo` through host
    memory, `nccl` from GPU to GPU, `ipc` within the one GPU that learner and engine share."""
    transfer_timeout_seconds: PositiveFloat = 120.0
    """A transfer that takes longer is given up, and the engines load the folder."""
    start_timeout_seconds: PositiveFloat = 600.0
    max_replacements: NonNegativeInt = 3
    """How many dead engines may be replaced before the pool gives up."""
    max_retakes: NonNegativeInt = 3
    """How often one request may be taken up again by another engine because its own died."""

    @model_validator(mode="after")
    def _check_workers(self) -> EngineConfig:
        if self.workers == "ray" and self.gpus < self.tensor_parallel:
            raise ValueError("engine.workers = ray needs engine.gpus = engine.tensor_parallel: on CPUs vLLM runs its workers as processes")
        return self

    @model_validator(mode="after")
    def _check_transfer(self) -> EngineConfig:
        if self.transfer in CUDA_TRANSFERS and self.gpus < (self.tensor_parallel if self.transfer == "nccl" else 0.01):
            raise ValueError(f"engine.transfer = {self.transfer} needs engines on GPUs: set engine.gpus, or take files or gloo")
        if self.transfer == "ipc" and (self.count > 1 or self.tensor_parallel > 1):
            raise ValueError("engine.transfer = ipc is for one engine of one worker, on the GPU of the learner: take nccl for more")
        return self

    @model_validator(mode="after")
    def _check_gpus(self) -> EngineConfig:
        if (self.gpus > 1 and self.gpus != self.tensor_parallel) or 0 < self.gpus < self.tensor_parallel > 1:
            raise ValueError(
                f"engine.gpus = {self.gpus:g} and engine.tensor_parallel = {self.tensor_parallel}: each worker has a GPU; make them equal"
            )
        if self.sleep_mode and not self.gpus:
            raise ValueError("engine.sleep_mode gives GPU memory back, and engine.gpus is 0: set that, or leave it out")
        return self


class SearchConfig(Section):
    """How documents are found."""

    by: Literal["words", "vectors"] = "words"
    """`words` is BM25; `vectors` compares embeddings of query and documents, which needs `encoder`."""
    encoder: str | None = None
    """Folder of the model that makes embeddings."""
    library: Literal["sentence_transformers", "transformers"] = "sentence_transformers"
    """What runs the encoder. `transformers` takes the mean of the last layer's states over the text, as E5 models want it."""
    query_prefix: str = ""
    """Put before each query; `query: ` for E5."""
    document_prefix: str = ""
    """Put before each document; `passage: ` for E5."""
    batch: PositiveInt = 64
    """Texts that go through the encoder at once."""
    max_tokens: PositiveInt = 256
    """Longer texts are cut off at the right."""

    @model_validator(mode="after")
    def _check_encoder(self) -> SearchConfig:
        if self.by == "vectors" and self.encoder is None:
            raise ValueError("rollout.search.by = vectors needs rollout.search.encoder, the folder of a model that makes embeddings")
        return self


class EnvironmentLimits(Section):
    """What the workers of an environment may use, and how many there are."""

    workers: PositiveInt = 1
    """Processes, each of which runs many environments side by side."""
    cpus: NonNegativeFloat = 0.5
    """What each worker reserves of Ray's CPUs."""
    gpus: NonNegativeFloat = 0
    """What each worker reserves of Ray's GPUs."""
    memory_gib: PositiveFloat | None = None
    """What each worker may allocate beyond what it starts with; the kernel refuses more, and the worker is replaced."""
    step_timeout_seconds: PositiveFloat = 60.0
    """A reset or a step that takes longer is a fault."""
    image: str | None = None
    """Container image that the workers run in, with the same Python, Ray and this package; needs podman."""


class EnvironmentKindConfig(EnvironmentLimits):
    """One kind of environment, by the name that tasks call it by."""

    factory: str | None = None
    """What makes it where that is not the name itself: a registered name, `module:attribute` or `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment."""


class EnvironmentPoolConfig(EnvironmentLimits):
    """Workers that environments run in. What stands here holds for each kind that does not say otherwise for itself."""

    kinds: dict[str, EnvironmentKindConfig] = Field(default_factory=dict)
    """Kinds with settings of their own, by name."""
    fault_window: PositiveInt = 32
    """How many of the last trajectories of an environment, or calls of a tool, the health gate looks at."""
    max_fault_share: float = Field(default=0.5, ge=0, le=1)
    """Rollouts stop where more of them were faults; 1 switches the gate off."""

    def kind(self, name: str) -> EnvironmentKindConfig:
        """The settings of the environment called `name`."""
        own = self.kinds.get(name, EnvironmentKindConfig())
        common = {field: getattr(self, field) for field in EnvironmentLimits.model_fields if field not in own.model_fields_set}
        return own.model_copy(update=common)

    @property
    def listed(self) -> dict[str, str]:
        """The names that tasks may call environments by beside those that are registered, each with its code."""
        return {name: own.factory or name for name, own in self.kinds.items()}

    @property
    def reserved_cpus(self) -> float:
        """Room in Ray's CPUs for all kinds with settings of their own, and for four without."""
        kinds = [self.kind(name) for name in self.kinds]
        return sum(kind.workers * kind.cpus for kind in kinds) + 4 * self.workers * self.cpus


class RayConfig(Section):
    """Where rollouts run."""

    address: str | None = None
    """A cluster, such as `ray://head:10001` or `auto`; None starts Ray on this machine."""
    gpus: NonNegativeInt | None = None
    """GPUs that Ray has on this machine; None: those that it finds, of which `CUDA_VISIBLE_DEVICES` may name some. A number tries, with
    `--dry-run`, what another machine would have room for. A cluster says itself what it has."""
    object_store_gib: PositiveFloat = 0.5
    """Shared memory on this machine; the corpus's index must fit."""


class Limits(Section):
    """What one trajectory may use; a trajectory that a limit ends bears the limit's name as its stop reason.

    Its number of turns is the horizon of its request. Training takes what was sampled and appended here, and cuts nothing again.
    """

    max_action_tokens: PositiveInt = 48
    """Tokens of one action, thought and tags included; what is longer is an action that cannot be read."""
    max_total_action_tokens: PositiveInt | None = None
    """Tokens of all actions together."""
    max_observation_tokens: int = Field(default=160, ge=8)
    """Tokens of one observation, tags and the mark of truncation included; what a chat template writes around it comes on top."""
    max_total_observation_tokens: PositiveInt | None = None
    """Tokens of all observations together, with what stands around them."""
    max_context_tokens: PositiveInt = 1024
    """Tokens of prompt, actions and observations together."""
    max_seconds: PositiveFloat | None = None
    """Wall time from the reset of the environment on; a trajectory that comes to it is stopped where it is, and is no fault."""
    truncate: Literal["right", "left", "middle"] = "right"
    """Where an observation that is too long is cut off; a marker stands there."""
    temperature: NonNegativeFloat = 1.0
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)


class DialectConfig(Section):
    """How prompts, actions and observations stand in tokens."""

    kind: str = "chat"
    """`tags`, `chat`, or `module:attribute`: a factory that takes the policy's tokenizer and `options`."""
    template: str = "own"
    """Of `chat`: the tokenizer's `own` chat template, the one that TRL ships for `training` beside it, `chatml_tools`, or a file."""
    system: str | None = None
    """Of `chat`: the system's message; None is whatever the template does without one."""
    introduce: bool | None = None
    """Of `tags`: whether the prompt says what the tags are and which tools there are; None: unless the policy is from scratch."""
    variables: dict[str, Any] = Field(default_factory=dict)
    """Of `chat`: what the template is given, such as `enable_thinking = false`."""
    today: date = date(2025, 1, 1)
    """Of `chat`: the date that templates are told which ask for it, so that a prompt is the same on every day."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of a dialect of one's own: whatever it takes."""


class RolloutConfig(Section):
    """Rollouts: what trajectories may use, and what they run on."""

    limits: Limits = Limits()
    loop: str = "react"
    """The agent loop of tasks that name none: a name, `module:attribute` or `file.py:attribute`."""
    loops: dict[str, str] = Field(default_factory=dict)
    """Agent loops of one's own by the names that tasks call them by, each `module:attribute` or `file.py:attribute`."""
    dialect: str = "tags"
    """The dialect of tasks that name none: `tags`, `chat`, or one of `dialects`."""
    dialects: dict[str, DialectConfig] = Field(default_factory=dict)
    """Further dialects by the names that tasks call them by."""
    concurrency: PositiveInt = 256
    """Trajectories side by side."""
    engine: EngineConfig = EngineConfig()
    environments: EnvironmentPoolConfig = EnvironmentPoolConfig()
    search: SearchConfig = SearchConfig()
    ray: RayConfig = RayConfig()

    @property
    def speaks_tags(self) -> bool:
        """Whether policies may have to write tags: the dialect of tasks that name none is of that kind, or one of `dialects`."""
        return self.dialect == "tags" or any(dialect.kind == "tags" for dialect in self.dialects.values())
