"""The configuration of the engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl.hardware import cpu_has_bfloat16
from warehouse.settings import Section

CUDA_TRANSFERS = frozenset({"nccl", "ipc"})
"""Transfers of weights that need CUDA on both sides."""
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM (0.32) has room made for; adapters of a rank between two take that of the larger."""


LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0
"""Between these vLLM samples as it is asked to: it refuses what is above them, and takes the lowest for what is below."""


def as_sampled(temperature: float) -> float:
    """The same; raises ValueError where engines do not sample at it."""
    if temperature == 0 or LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        return temperature
    raise ValueError(f"engines sample at 0 and from {LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE:g}, not at {temperature:g}")


Temperature = Annotated[float, AfterValidator(as_sampled)]
"""A temperature that engines sample at; 0 is greedy."""


class PressureConfig(Section):
    """Concurrency that follows the engines: the rule is in `rl/rollouts/admission.py`."""

    floor: PositiveInt = 32
    """Trajectories side by side that it begins with and does not go below; `rollout.concurrency` where that is less."""
    increase: PositiveInt = 16
    """How many more there may be after a look at which no engine was pressed and somebody waited for a place."""
    decrease: float = Field(default=0.7, gt=0, lt=1)
    """The share of what is under way that is left after a look at which one was; that of CUBIC (RFC 9438)."""
    kv_usage: float = Field(default=0.9, gt=0, le=1)
    """An engine is pressed where more of its cache is in use."""
    queue: NonNegativeInt = 0
    """And where more requests than this have waited in each of its steps since the last look."""
    every_seconds: PositiveFloat = 1.0
    """Pause between two looks."""


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
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """What it computes in, and what it is given new weights in: `auto` is bfloat16 on GPUs and on processors that have it, else float32."""
    max_model_len: PositiveInt | None = None
    """Longest context in tokens; None is what the policy's own configuration says."""
    max_num_seqs: PositiveInt = 128
    """Sequences in one batch."""
    max_batched_tokens: PositiveInt = 8192
    """Tokens in one forward pass; on CPUs no fewer than a context may have, for prompts are computed whole there (`vllm_engine.py`)."""
    kv_cache_gib: PositiveFloat = 0.5
    """Memory for keys and values, of each worker."""
    block_size: PositiveInt | None = 32
    """Tokens in a block of the cache: a prefix is shared in whole blocks. None leaves it to vLLM."""
    enforce_eager: bool = True
    """No compilation: starts sooner, and is no slower for small policies on CPUs."""
    adapter_rank: PositiveInt | None = None
    """Serve adapters of up to this rank: of what RL trains with `lora`, each version is then sent as its adapters alone, which no merging
    has rounded. It costs each token the adapters' products. None: versions are whole policies, with adapters merged."""
    structured: bool = False
    """Whether a continuation may be held to a JSON schema; the engine then loads the policy's tokenizer."""
    sleep_level: Literal[0, 1, 2] = 0
    """What an engine gives back while a learner has its turn, for engines and a learner on the same card: 0 nothing, 1 its memory, with the
    weights waiting in the host's, 2 the weights too, which must then come anew before it samples."""
    seed: NonNegativeInt = 0
    updates: Literal["keep", "drain"] = "keep"
    """What becomes of requests under way when weights are loaded: they keep their tokens and go on under the new ones, or they end under
    the old ones before."""
    transfer: Literal["files", "gloo", "nccl", "ipc"] = "files"
    """How new weights come from the learner: from the folder that it writes of each version, or by vLLM's weight transfer, and then steps
    write none: `gloo` through host memory, `nccl` from GPU to GPU, `ipc` within the one GPU that learner and engine share."""
    transfer_timeout_seconds: PositiveFloat = 120.0
    """A transfer that takes longer is given up, and the engines load the folder."""
    start_timeout_seconds: PositiveFloat = 600.0
    max_replacements: NonNegativeInt = 3
    """How often the engine in one place may die and be replaced; the pool gives up where none is left."""
    pressure: PressureConfig | None = None
    """Have as many trajectories side by side as the engines can take, `rollout.concurrency` at most; None is always as many as that."""
    max_retakes: NonNegativeInt = 3
    """How often one request may be taken up again by another engine because its own died."""

    def longest_context(self, policy: Path) -> int | None:
        """The longest context in tokens: `max_model_len`, else what the policy in folder `policy` takes; None where neither says."""
        return self.positions(policy) if self.max_model_len is None else self.max_model_len

    @staticmethod
    def positions(policy: Path) -> int | None:
        """The longest context in tokens that the model in folder `policy` takes, by its config.json as vLLM reads it."""
        model = json.loads((policy / "config.json").read_text())
        model = model.get("text_config", model)
        longest, rope = model.get("max_position_embeddings"), model.get("rope_scaling") or model.get("rope_parameters") or {}
        scaled = rope.get("rope_type", rope.get("type")) in ("linear", "dynamic")
        return None if longest is None else int(longest * (rope.get("factor") or 1 if scaled else 1))

    @property
    def own_dtype(self) -> str:
        """What it computes in on this machine."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.gpus or cpu_has_bfloat16() else "float32"

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
        return self

    @model_validator(mode="after")
    def _check_adapters(self) -> EngineConfig:
        if self.adapter_rank is None:
            return self
        if self.adapter_rank > ADAPTER_RANKS[-1]:
            raise ValueError(f"engine.adapter_rank = {self.adapter_rank} is more than the {ADAPTER_RANKS[-1]} that vLLM serves")
        if self.transfer != "files":
            raise ValueError(f"engine.adapter_rank goes without engine.transfer = {self.transfer}: adapters are sent by Ray's calls")
        if self.workers == "ray":
            raise ValueError("engine.adapter_rank needs all workers of an engine on one machine: take engine.workers = processes")
        if self.sleep_level == 2:
            raise ValueError("engine.sleep_level = 2 loses the policy beneath adapters, and engine.adapter_rank brings these alone: take 1")
        return self

    @model_validator(mode="after")
    def _check_sleep(self) -> EngineConfig:
        if self.sleep_level == 2 and self.older:
            raise ValueError("engine.sleep_level = 2 loses weights, and those of an older policy (engine.older) come from nowhere: take 1")
        return self
