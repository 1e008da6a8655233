"""GPU specifications and model requirements: FLOPs per token and bytes of memory, as used by `flywheel plan`.

Activation counts follow transformers' Llama and Qwen code (`models/llama/modeling_llama.py`, 5.19) with the attention of
`rl/learner/packing.py`, which keeps nothing quadratic in tokens; `benchmarks/memory.py` checks the formulas against real processes. Only
the model types in `DECODERS` are supported. Masked attention is not counted; sliding windows count as full contexts. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rl.policies.config import PolicyConfig
from warehouse.errors import RequestError

FLOAT32, BFLOAT16 = 4, 2
GIB = 2**30
LOGITS_AT_ONCE = 2**27
"""Logits that the learner materializes at a time on CPUs (`rl/learner/packing.py`)."""
TILE_TOKENS, TILE_WIDTH = 4096, 32_768
"""Tile in which TRL's head computes logits on GPUs (`trl/kernels/chunked_logprob.py`, `trl/trainer/utils.py`)."""
# fmt: off
DECODERS = frozenset({
    "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite", "helium",
    "hunyuan_v1_dense", "hyperclovax", "llama", "ministral", "ministral3", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2",
    "qwen3", "seed_oss", "smollm3", "stablelm",
})
# fmt: on
"""`model_type` of decoders with grouped-query attention and gated feed-forward layers; checked by `tests/rl/test_hardware.py`."""


def bytes_of(dtype: str) -> int:
    """Bytes per number of a dtype: 4 for `float32`, else 2."""
    return FLOAT32 if dtype == "float32" else BFLOAT16


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a decoder with gated feed-forward layers and grouped-query attention."""

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Read the sizes from a model's `config.json`.

        Raises:
            ValueError: a size is missing, or the model type is not in `DECODERS` (experts, linear attention, mixed layers, vision or
                audio).
        """
        if config.get("model_type") not in DECODERS:
            raise ValueError(
                f"model_type is {config.get('model_type')!r}; only dense decoders with one kind of layer are supported: "
                + ", ".join(sorted(DECODERS))
            )
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                int(config["num_hidden_layers"]),
                hidden,
                heads,
                int(config.get("num_key_value_heads") or heads),
                int(config.get("head_dim") or hidden // heads),
                int(config["intermediate_size"]),
                int(config["vocab_size"]),
                bool(config.get("tie_word_embeddings", True)),
            )
        except KeyError as error:
            raise ValueError(f"config.json has no {error.args[0]}") from error

    @classmethod
    def of_policy(cls, config: PolicyConfig) -> Architecture:
        """Sizes of a policy trained from scratch."""
        return cls(
            config.layers,
            config.width,
            config.heads,
            config.key_value_heads,
            config.head_size,
            config.intermediate_size,
            config.vocabulary_size,
            tied=True,
        )

    @property
    def width(self) -> int:
        """Total width of all query heads."""
        return self.heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: query, key, value and output projections, three feed-forward matrices, two norms."""
        attention = 2 * self.hidden * self.width + 2 * self.hidden * self.key_value_heads * self.head_size
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; an untied head has the same number."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters except biases, which are at most a thousandth."""
        return self.layers * self.layer_parameters + self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def matrices(self) -> int:
        """Parameters that each token is multiplied with: layers and head."""
        return self.layers * self.layer_parameters + self.embedding


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward and backward pass over `tokens` tokens, `scored` of which need log-probabilities."""

    tokens: int
    scored: int
    bfloat16: bool
    checkpointing: bool = False
    offloading: bool = False
    """Keep activations in host memory."""


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Peak memory of one learner worker by use, in bytes."""

    weights: int
    gradients: int
    buckets: int
    """DDP's second copy of the gradients, with more than one replica."""
    optimiser: int
    casts: int
    """Copies of weights in the compute dtype: of all weights, or of the layers that FSDP has gathered."""
    activations: int
    logits: int
    critic: int
    """Activations of the value head; its parameters count with the others."""

    @property
    def peak(self) -> int:
        """Total after the forward pass of any micro-batch but the first."""
        return self.resting + self.gradients + self.casts + self.activations + self.logits + self.critic

    @property
    def resting(self) -> int:
        """Total between steps: weights, optimizer states and DDP's buckets."""
        return self.weights + self.optimiser + self.buckets


def learner_memory(
    policy: Architecture,
    work: Pass,
    shards: int = 1,
    adapters: int | None = None,
    tiled: bool = False,
    critic: bool = False,
    replicas: int = 1,
) -> LearnerMemory:
    """Memory of one learner worker: float32 weights with AdamW, whose gradient and two moments each have the size of the trained
    parameters.

    ZeRO (arXiv 1910.02054, §3): 16 bytes per parameter; stage 3 (FSDP2) shards them among workers and gathers one layer at a time.

    Args:
        shards: number of workers that share the model states.
        adapters: LoRA rank if only adapters are trained (arXiv 2106.09685), else None.
        tiled: whether logits are computed in TRL's tiles, as on GPUs.
        critic: whether a value head is trained (in full, also with adapters).
        replicas: number of workers that each hold all model states, joined by DDP.
    """
    trained = policy.parameters if adapters is None else adapter_parameters(policy, adapters)
    trained += head_parameters(policy) if critic else 0
    states = FLOAT32 * trained // shards
    frozen = 0 if adapters is None else FLOAT32 * policy.parameters // shards
    computed = BFLOAT16 if work.bfloat16 else FLOAT32
    gathered = computed * (policy.embedding * (1 if policy.tied else 2) + 2 * policy.layer_parameters)
    cast = BFLOAT16 * policy.matrices if work.bfloat16 else 0
    return LearnerMemory(
        weights=states + frozen,
        gradients=states,
        buckets=states if replicas > 1 else 0,
        optimiser=2 * states,
        casts=gathered if shards > 1 else cast,
        activations=activation_bytes(policy, work),
        logits=logit_bytes(policy, work, tiled),
        critic=critic_bytes(policy, work) if critic else 0,
    )


def head_parameters(policy: Architecture) -> int:
    """Parameters of the critic's value head."""
    return policy.hidden * (policy.hidden + 2) + 1


def critic_bytes(policy: Architecture, work: Pass) -> int:
    """Activations of the value head: per token the output of its first layer, its input or gradient, and under autocast a bfloat16 copy."""
    kept = 2 * FLOAT32 if not work.bfloat16 else 3 * BFLOAT16
    return kept * work.tokens * policy.hidden


def adapter_parameters(policy: Architecture, rank: int) -> int:
    """Parameters of LoRA adapters on all matrices of the layers: rank · (in + out) each."""
    keys = policy.key_value_heads * policy.head_size
    ends = 2 * (policy.hidden + policy.width) + 2 * (policy.hidden + keys) + 3 * (policy.hidden + policy.intermediate)
    return policy.layers * rank * ends


def trained_matrices(policy: Architecture, adapters: int | None) -> int:
    """Parameters that each token is multiplied with and that receive a gradient."""
    return policy.matrices if adapters is None else adapter_parameters(policy, adapters)


def layer_bytes(policy: Architecture, bfloat16: bool) -> int:
    """Bytes that autograd keeps per token and layer.

    In float32, counted in numbers: two norms keep 3 h each; attention keeps queries and its output twice (3 times the width), keys and
    values; the feed-forward part keeps 4 i. Under autocast the norms keep two float32 states each; matrix inputs are bfloat16 (5 h in all),
    and the rest takes two bytes per number.
    """
    hidden, inner = policy.hidden, policy.intermediate
    heads = 3 * policy.width + 2 * policy.key_value_heads * policy.head_size
    if not bfloat16:
        return FLOAT32 * (6 * hidden + heads + 4 * inner)
    return FLOAT32 * 4 * hidden + BFLOAT16 * (5 * hidden + heads + 4 * inner)


def activation_bytes(policy: Architecture, work: Pass) -> int:
    """Bytes of activations of a pass. Checkpointing keeps one state per layer and recomputes one layer at a time (arXiv 1604.06174);
    offloading keeps one layer on the GPU.
    """
    whole = layer_bytes(policy, work.bfloat16)
    ends = 4 * FLOAT32 * policy.hidden  # embedding output, and last norm with the states selected from it
    kept = policy.layers * FLOAT32 * policy.hidden + whole if work.checkpointing else policy.layers * whole
    return work.tokens * ((whole if work.offloading else kept) + ends)


def logit_bytes(policy: Architecture, work: Pass, tiled: bool) -> int:
    """Bytes of the scored tokens' logits and of the head's gradient.

    On CPUs three buffers of a chunk coexist (log-probabilities, their input, its gradient). TRL's tiling keeps one tile, and float32
    gradients of the head and of the states.
    """
    head = FLOAT32 * policy.embedding
    if tiled:
        tile = min(work.scored, TILE_TOKENS) * min(policy.vocabulary, TILE_WIDTH)
        return (BFLOAT16 if work.bfloat16 else FLOAT32) * tile + head + FLOAT32 * work.scored * policy.hidden
    piece = min(work.scored, max(1, LOGITS_AT_ONCE // policy.vocabulary))
    return 3 * FLOAT32 * policy.vocabulary * piece + head


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of one engine worker by use, in bytes."""

    weights: int
    cache: int
    activations: int
    """For a full batch: the widest states of its tokens, and per sequence float32 logits, their softmax and a sorted copy."""

    @property
    def peak(self) -> int:
        return self.weights + self.cache + self.activations


def engine_memory(
    policy: Architecture, number_bytes: int, workers: int, cache: int, batched_tokens: int, sequences: int, adapters: int | None = None
) -> EngineMemory:
    """Memory of one of an engine's workers, which share weights and attention heads.

    Args:
        number_bytes: bytes per weight.
        cache: bytes of each worker's KV cache.
        batched_tokens: tokens per forward pass.
        sequences: sequences per batch.
        adapters: LoRA rank of the served adapters, or None.
    """
    widest = max(policy.hidden * 2, 2 * policy.intermediate // workers)
    batch = number_bytes * batched_tokens * (widest + 2 * policy.hidden) + 3 * FLOAT32 * sequences * policy.vocabulary
    numbers = policy.parameters + (0 if adapters is None else adapter_parameters(policy, adapters))
    return EngineMemory(number_bytes * numbers // workers, cache, batch)


def cache_bytes(policy: Architecture, number_bytes: int, workers: int = 1) -> int:
    """Bytes of KV cache per token in each worker of an engine (arXiv 2309.06180, §3)."""
    heads = max(1, policy.key_value_heads // workers)
    return 2 * policy.layers * heads * policy.head_size * number_bytes


TERA = 1e12


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's data-sheet values: dense bfloat16 TFLOP/s, GiB of memory as the driver reports it, memory bandwidth in GB/s."""

    name: str
    teraflops: float
    memory_gib: float
    bandwidth: float


DEVICES = (
    Device("H200", 989.0, 139.0, 4800.0),
    Device("H100", 989.0, 79.0, 3350.0),
    Device("A100", 312.0, 79.0, 2039.0),
    Device("L40S", 362.0, 44.0, 864.0),
    Device("L40", 181.0, 44.0, 864.0),
    Device("A10", 125.0, 22.0, 600.0),
    Device("L4", 121.0, 22.0, 300.0),
)
"""Matched against part of the device name, longer names first. H100 and A100 are the SXM versions with 80 GB."""


def device_of(name: str) -> Device | None:
    """Look up the device that CUDA reports as `name`, such as `NVIDIA H100 80GB HBM3`; None if unknown."""
    return next((device for device in DEVICES if device.name in name.split() or f"-{device.name}-" in f"-{'-'.join(name.split())}-"), None)


def forward_flops(matrices: int, layers: int, width: int, context: float) -> float:
    """FLOPs per token of a forward pass: 2 N + 4 · L · H · T; arguments as in `training_flops`."""
    return 2.0 * matrices + 4.0 * layers * width * context


def training_flops(matrices: int, trained: int, layers: int, width: int, context: float) -> float:
    """FLOPs per token, forward and backward: 4 N + 2 M + 12 · L · H · T.

    With M = N this is PaLM's 6 N + 12 · L · H · T (arXiv 2204.02311, appendix B). Frozen matrices need no weight gradient.

    Args:
        matrices: N, parameters of all matrices that a token passes through, including the head, excluding the embedding.
        trained: M, the trained ones of these, or the parameters of adapters.
        layers: L.
        width: H, heads times head size.
        context: T, mean number of attended tokens; half the context under causal attention.
    """
    return 4.0 * matrices + 2.0 * trained + 12.0 * layers * width * context


def model_flops_utilisation(tokens_per_second: float, flops_per_token: float, teraflops: float | None, devices: int = 1) -> float | None:
    """MFU: achieved FLOPs over the peak of all devices; None if the peak is unknown. Recomputed activations do not count (PaLM)."""
    if teraflops is None:
        return None
    return tokens_per_second * flops_per_token / (teraflops * TERA * devices)


DEVICE_NAME = r"^(cpu|cuda(:[0-9]+)?)$"
"""Devices that a configuration may name for models other than the policy."""


def open_device(name: str, key: str) -> Any:
    """The torch device `name`, which must match `DEVICE_NAME`; `key` is the setting to name in errors.

    Raises:
        RequestError: this process sees no such device.
    """
    import torch  # slow to import, and not needed for device look-ups

    device = torch.device(name)
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise RequestError(
            f"{key} = {name} is not visible to this process: reserve GPUs for it, as with "
            "rollout.environments.kinds.NAME.gpus for workers, or use cpu."
        )
    return device


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions (AVX-512 BF16 or AMX); without them bfloat16 is many times slower than float32."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set PyTorch's thread count to `count` within the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
