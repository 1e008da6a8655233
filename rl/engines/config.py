"""Configuration of inference engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl.hardware import cpu_has_bfloat16
from rl.placement import Bundle, Reservation
from warehouse.settings import Section

CUDA_TRANSFERS = frozenset({"nccl", "ipc"})
"""Weight transfers that need CUDA on both sides."""
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Maximum LoRA ranks that vLLM (0.32) accepts; other ranks are rounded up."""


LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0
"""Temperature range that vLLM applies unchanged: it rejects higher ones and clamps lower ones."""


def as_sampled(temperature: float) -> float:
    """Return `temperature`. Raises ValueError if engines do not support it."""
    if temperature == 0 or LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        return temperature
    raise ValueError(f"engines support temperature 0 and {LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE:g}, not {temperature:g}")


Temperature = Annotated[float, AfterValidator(as_sampled)]
"""A sampling temperature; 0 is greedy."""


class PressureConfig(Section):
    """Adapt concurrency to engine load by additive increase and multiplicative decrease (`rl/rollouts/admission.py`)."""

    floor: PositiveInt = 32
    """Initial and minimum number of concurrent trajectories."""
    increase: PositiveInt = 16
    """Concurrency added when no engine is overloaded and trajectories are waiting."""
    decrease: float = Field(default=0.7, gt=0, lt=1)
    """Factor applied to the number of running trajectories when an engine is overloaded."""
    kv_usage: float = Field(default=0.9, gt=0, le=1)
    """KV cache usage, as a fraction, above which an engine counts as overloaded."""
    queue: NonNegativeInt = 0
    """Number of waiting requests above which an engine counts as overloaded."""
    every_seconds: PositiveFloat = 1.0
    """Seconds between checks."""


class ServingEngineConfig(Section):
    """Engines that serve a fixed model."""

    count: PositiveInt = 1
    """Number of engines; each holds a complete model."""
    cpus: NonNegativeFloat = 1
    """Ray CPUs reserved per engine, including all its workers."""
    gpus: NonNegativeFloat = 0
    """Ray GPUs reserved per engine: `tensor_parallel`, or a fraction below 1 to share one GPU."""
    threads: PositiveInt = 1
    """OpenMP threads per CPU worker. For small models 2 is no faster, and up to 20 times slower when other processes use the cores."""
    tensor_parallel: PositiveInt = 1
    """Tensor-parallel size: number of workers per engine."""
    workers: Literal["processes", "ray"] = "processes"
    """Run workers as processes on the engine's machine (`processes`) or as Ray actors that may span machines (`ray`)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Compute dtype; `auto` is bfloat16 on GPUs and on CPUs with bfloat16 instructions, else float32."""
    max_model_len: PositiveInt | None = None
    """Context length in tokens; None uses the model's own, from config.json."""
    max_num_seqs: PositiveInt = 128
    """Maximum sequences per batch."""
    max_batched_tokens: PositiveInt = 8192
    """Maximum tokens per forward pass; on CPUs raised to the context length, because prompts are not chunked there."""
    kv_cache_gib: PositiveFloat = 0.5
    """KV cache memory per worker, in GiB."""
    enforce_eager: bool = True
    """Disable compilation and CUDA graphs. Starts faster; for small models on CPUs no slower."""
    start_timeout_seconds: PositiveFloat = 600.0
    """Maximum seconds for an engine to start."""

    @property
    def total(self) -> int:
        return self.count

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """Reservation of one engine: one bundle, or one per worker if workers are Ray actors."""
        count = self.tensor_parallel if self.workers == "ray" else 1
        return (Bundle(self.cpus / count, self.gpus / count),) * count

    def reservation(self, key: str) -> Reservation:
        """Reservation of all engines, including those of an older policy."""
        return Reservation(key, self.bundles * self.total)

    def longest_context(self, policy: Path) -> int | None:
        """Context length in tokens: `max_model_len`, else that of the policy in folder `policy`; None if unknown."""
        return self.positions(policy) if self.max_model_len is None else self.max_model_len

    @staticmethod
    def positions(policy: Path) -> int | None:
        """Context length in tokens from the config.json in folder `policy`, derived as vLLM does; None if unknown."""
        model = json.loads((policy / "config.json").read_text())
        model = model.get("text_config", model)
        longest, rope = model.get("max_position_embeddings"), model.get("rope_scaling") or model.get("rope_parameters") or {}
        scaled = rope.get("rope_type", rope.get("type")) in ("linear", "dynamic")
        return None if longest is None else int(longest * (rope.get("factor") or 1 if scaled else 1))

    @property
    def own_dtype(self) -> str:
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.gpus or cpu_has_bfloat16() else "float32"

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers == "ray" and self.gpus < self.tensor_parallel:
            raise ValueError("engine.workers = ray needs engine.gpus = engine.tensor_parallel: on CPUs vLLM runs its workers as processes")
        return self

    @model_validator(mode="after")
    def _check_gpus(self) -> Self:
        if (self.gpus > 1 and self.gpus != self.tensor_parallel) or 0 < self.gpus < self.tensor_parallel > 1:
            raise ValueError(
                f"engine.gpus = {self.gpus:g} and engine.tensor_parallel = {self.tensor_parallel}: each worker needs a GPU; make them equal"
            )
        return self


class EngineConfig(ServingEngineConfig):
    """Engines that sample from a policy in training."""

    older: NonNegativeInt = 0
    """Additional engines that serve an older policy, for `rl.older_share`."""
    older_every: PositiveInt = 25
    """Number of versions the older policy may lag behind before it is refreshed."""
    adapter_rank: PositiveInt | None = None
    """Serve LoRA adapters up to this rank, so that weight updates send adapters only; None sends merged weights."""
    structured: bool = False
    """Allow decoding constrained by a JSON schema; the engine then loads the tokenizer."""
    sleep_level: Literal[0, 1, 2] = 0
    """Memory released while the learner runs on the same GPU: none (0), offload weights to host memory (1), or discard weights (2)."""
    updates: Literal["keep", "drain"] = "keep"
    """On a weight update, running requests continue with the new weights (`keep`) or first finish with the old ones (`drain`)."""
    transfer: Literal["files", "gloo", "nccl", "ipc"] = "files"
    """Weight transfer: checkpoint folder (`files`), host memory (`gloo`), GPU to GPU (`nccl`), or within one shared GPU (`ipc`)."""
    transfer_timeout_seconds: PositiveFloat = 120.0
    """Maximum seconds for a weight transfer; on timeout engines load the checkpoint folder instead."""
    max_replacements: NonNegativeInt = 3
    """Maximum number of replacements of each engine after crashes."""
    pressure: PressureConfig | None = None
    """Adapt concurrency to engine load, up to `rollout.concurrency`; None keeps it fixed."""

    @property
    def total(self) -> int:
        return self.count + self.older

    def check_adapters(self, trained: bool) -> None:
        """Raise ValueError if the engines serve adapters and RL trains none."""
        if self.adapter_rank is not None and not trained:
            raise ValueError(
                f"rollout.engine.adapter_rank = {self.adapter_rank} serves adapters, but RL trains none: set rl.lora or unset adapter_rank"
            )

    @model_validator(mode="after")
    def _check_transfer(self) -> Self:
        if self.transfer in CUDA_TRANSFERS and self.gpus < (self.tensor_parallel if self.transfer == "nccl" else 0.01):
            raise ValueError(f"engine.transfer = {self.transfer} needs engines on GPUs: set engine.gpus, or use files or gloo")
        if self.transfer == "ipc" and (self.count > 1 or self.tensor_parallel > 1):
            raise ValueError("engine.transfer = ipc supports one engine with one worker, on the learner's GPU: use nccl for more")
        return self

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        if self.adapter_rank is None:
            return self
        if self.adapter_rank > ADAPTER_RANKS[-1]:
            raise ValueError(f"engine.adapter_rank = {self.adapter_rank} exceeds {ADAPTER_RANKS[-1]}, the maximum of vLLM")
        if self.transfer != "files":
            raise ValueError(
                f"engine.adapter_rank does not support engine.transfer = {self.transfer}: adapters are sent through Ray; use files"
            )
        if self.workers == "ray":
            raise ValueError("engine.adapter_rank needs all workers of an engine on one machine: use engine.workers = processes")
        if self.sleep_level == 2:
            raise ValueError("engine.sleep_level = 2 discards the base policy, but engine.adapter_rank sends only adapters: use 1")
        return self

    @model_validator(mode="after")
    def _check_sleep(self) -> Self:
        if self.sleep_level == 2 and self.older:
            raise ValueError(
                "engine.sleep_level = 2 discards weights, and those of an older policy (engine.older) cannot be restored: use 1"
            )
        return self
