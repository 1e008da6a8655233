"""How much memory a policy takes: to learn, to sample. Pure formulas over sizes; all results are bytes.

What autograd keeps of a layer is counted from the source of transformers' Llama and Qwen models (`models/llama/modeling_llama.py` of
transformers 5.19) under the attention of `rl/learner/packing.py`, which keeps nothing of tokens times tokens; `benchmarks/memory.py`
holds the formulas against what processes really take. Only decoders whose numbers these sizes give are planned for (`DECODERS`). Attention
under a mask is not counted, and sliding windows are counted as whole contexts.

What GPUs give by their makers' data sheets: the yardstick of a learner's share of the peak, and what `flywheel plan` reckons with.

And the device that a configuration names for a model that is no policy, such as an encoder or a reward model; what a processor multiplies
in, and its threads.
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
"""Logits that the learner on CPUs builds at a time (`rl/learner/packing.py`)."""
TILE_TOKENS, TILE_WIDTH = 4096, 32_768
"""The tile in which TRL's head on GPUs builds logits (`trl/kernels/chunked_logprob.py`, `trl/trainer/utils.py`)."""
# fmt: off
DECODERS = frozenset({
    "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite", "helium",
    "hunyuan_v1_dense", "hyperclovax", "llama", "ministral", "ministral3", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2",
    "qwen3", "seed_oss", "smollm3", "stablelm",
})
# fmt: on
"""The `model_type` of decoders with grouped queries and gated feed-forward layers, all alike; `tests/rl/test_memory.py` counts them."""


def bytes_of(dtype: str) -> int:
    """Of a number in the dtype of that name."""
    return FLOAT32 if dtype == "float32" else BFLOAT16


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a decoder with gated feed-forward layers and grouped queries."""

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
        """That of a model's `config.json`.

        Raises:
            ValueError: it lacks a size, or these sizes are not all that the model is made of: experts, linear attention, layers of another
                kind, a part that sees or hears.
        """
        if config.get("model_type") not in DECODERS:
            raise ValueError(
                f"its model_type is {config.get('model_type')!r}, and only dense decoders of one kind of layer are planned for: "
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
            raise ValueError(f"config.json does not say {error.args[0]}") from error

    @classmethod
    def of_policy(cls, config: PolicyConfig) -> Architecture:
        """That of a policy from scratch."""
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
        """Of all query heads together."""
        return self.heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Numbers in a layer: queries, keys and values, output, three matrices of the feed-forward part, two norms."""
        attention = 2 * self.hidden * self.width + 2 * self.hidden * self.key_value_heads * self.head_size
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding(self) -> int:
        """Numbers in the embedding, and in the head where it is not the same."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All numbers; biases, a thousandth at most, are left out."""
        return self.layers * self.layer_parameters + self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def matrices(self) -> int:
        """Numbers that a token is multiplied with: the layers and the head."""
        return self.layers * self.layer_parameters + self.embedding


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass: tokens that go through the model, and those of them whose log-probability is asked for."""

    tokens: int
    scored: int
    bfloat16: bool
    checkpointing: bool = False
    offloading: bool = False
    """Whether what the backward pass needs is kept in the host's memory."""


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """What one worker of a learner holds at its fullest, in bytes, by what it is."""

    weights: int
    gradients: int
    buckets: int
    """Gradients once more, as DDP sends them, where several workers each have the whole of the weights."""
    optimiser: int
    casts: int
    """Copies of weights in the precision that is computed in: of all of them, or of the layers that FSDP has gathered."""
    activations: int
    logits: int
    critic: int
    """What a value head adds to activations; its numbers are among the others."""

    @property
    def peak(self) -> int:
        """All of it: behind the forward pass of a later micro-batch."""
        return self.resting + self.gradients + self.casts + self.activations + self.logits + self.critic

    @property
    def resting(self) -> int:
        """Between two steps: weights, the optimiser's states, and DDP's buckets, which it keeps."""
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
    """Of one worker: float32 weights under AdamW, whose two moments and gradient are each as large as what is trained.

    ZeRO (arXiv 1910.02054, §3) calls weights, gradients and moments the model states, 16 bytes a number here; its stage 3, which FSDP2
    is, divides them by the workers and gathers a layer at a time.

    Args:
        shards: workers that share the model states.
        adapters: the rank of low-rank adapters, which are then all that is trained (arXiv 2106.09685).
        tiled: whether logits are built in TRL's tiles, as on GPUs, and not by `rl/learner/packing.py`.
        critic: whether a value head is trained with the policy, whole also beside adapters (`rl/learner/losses.py`).
        replicas: workers that each have the whole of the model states; from 2 on DDP joins them.
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
    """Numbers in the critic's value head: a matrix from states to as many, a vector to one value, two biases."""
    return policy.hidden * (policy.hidden + 2) + 1


def critic_bytes(policy: Architecture, work: Pass) -> int:
    """What the value head adds to a pass: for each token the output of its first layer, which the backward pass needs, and what that is
    computed from or its gradient; under autocast a copy of the states in bfloat16 as well.
    """
    kept = 2 * FLOAT32 if not work.bfloat16 else 3 * BFLOAT16
    return kept * work.tokens * policy.hidden


def adapter_parameters(policy: Architecture, rank: int) -> int:
    """Numbers in adapters of that rank on all matrices of the layers: rank · (in + out) each."""
    keys = policy.key_value_heads * policy.head_size
    ends = 2 * (policy.hidden + policy.width) + 2 * (policy.hidden + keys) + 3 * (policy.hidden + policy.intermediate)
    return policy.layers * rank * ends


def trained_matrices(policy: Architecture, adapters: int | None) -> int:
    """Numbers that a token is multiplied with and that get a gradient: all, or those of adapters of that rank."""
    return policy.matrices if adapters is None else adapter_parameters(policy, adapters)


def layer_bytes(policy: Architecture, bfloat16: bool) -> int:
    """What autograd keeps of a token in one layer.

    In float32, in numbers: two norms keep their input, the normed and the weighted states, 3 h each; attention keeps queries, its output
    and that once more for the next matrix, 3 times the width of all heads, and keys and values in the heads that they have; the gated
    feed-forward part keeps the gate, its activation, the other half and their product, 4 i. Under autocast the norms keep two float32 each,
    the matrices inputs in bfloat16: three copies for queries, keys and values, two for gate and other half, and the rest is of two bytes.
    """
    hidden, inner = policy.hidden, policy.intermediate
    heads = 3 * policy.width + 2 * policy.key_value_heads * policy.head_size
    if not bfloat16:
        return FLOAT32 * (6 * hidden + heads + 4 * inner)
    return FLOAT32 * 4 * hidden + BFLOAT16 * (5 * hidden + heads + 4 * inner)


def activation_bytes(policy: Architecture, work: Pass) -> int:
    """Those of a pass. With checkpointing a layer keeps its input alone, and one layer at a time is computed again (arXiv 1604.06174).

    Offloaded, one layer's are on the card at a time.
    """
    whole = layer_bytes(policy, work.bfloat16)
    ends = 4 * FLOAT32 * policy.hidden  # the embedding's output, and the last norm with what is picked from it
    kept = policy.layers * FLOAT32 * policy.hidden + whole if work.checkpointing else policy.layers * whole
    return work.tokens * ((whole if work.offloading else kept) + ends)


def logit_bytes(policy: Architecture, work: Pass, tiled: bool) -> int:
    """Those of the scored tokens, and of the head's gradient.

    On CPUs three of a piece's size stand beside each other: its log-probabilities, which the backward pass needs, and what they are
    computed from or their gradient. In TRL's tiles one is there at a time, beside float32 gradients of the head and of the states that it
    is given.
    """
    head = FLOAT32 * policy.embedding
    if tiled:
        tile = min(work.scored, TILE_TOKENS) * min(policy.vocabulary, TILE_WIDTH)
        return (BFLOAT16 if work.bfloat16 else FLOAT32) * tile + head + FLOAT32 * work.scored * policy.hidden
    piece = min(work.scored, max(1, LOGITS_AT_ONCE // policy.vocabulary))
    return 3 * FLOAT32 * policy.vocabulary * piece + head


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What one worker of an engine holds, in bytes, by what it is."""

    weights: int
    cache: int
    activations: int
    """Of a full batch: the widest states of its tokens, and float32 logits, their softmax and a sorted copy for each sequence."""

    @property
    def peak(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.activations


def engine_memory(
    policy: Architecture, number_bytes: int, workers: int, cache: int, batched_tokens: int, sequences: int, adapters: int | None = None
) -> EngineMemory:
    """Of one of an engine's workers, which share weights and heads: all but the embedding's rows are divided by them.

    Args:
        number_bytes: of a weight.
        cache: for keys and values, of each worker; it is given and not computed.
        batched_tokens: in one forward pass.
        sequences: in one batch.
        adapters: the rank of the adapters that it serves beside the weights.
    """
    widest = max(policy.hidden * 2, 2 * policy.intermediate // workers)
    batch = number_bytes * batched_tokens * (widest + 2 * policy.hidden) + 3 * FLOAT32 * sequences * policy.vocabulary
    numbers = policy.parameters + (0 if adapters is None else adapter_parameters(policy, adapters))
    return EngineMemory(number_bytes * numbers // workers, cache, batch)


def cache_bytes(policy: Architecture, number_bytes: int, workers: int = 1) -> int:
    """Of a token in each worker of an engine: keys and values of each layer (arXiv 2309.06180, §3)."""
    heads = max(1, policy.key_value_heads // workers)
    return 2 * policy.layers * heads * policy.head_size * number_bytes


TERA = 1e12


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: dense bfloat16 in TFLOP/s, memory in GiB as the driver shows it about, and memory bandwidth in GB/s."""

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
"""By a part of the device's name; the longer names first where one is a part of another. H100 and A100 are those with SXM and 80 GB."""


def device_of(name: str) -> Device | None:
    """The device whose name CUDA reports, such as `NVIDIA H100 80GB HBM3`; None where the table has it not."""
    return next((device for device in DEVICES if device.name in name.split() or f"-{device.name}-" in f"-{'-'.join(name.split())}-"), None)


def forward_flops(matrices: int, layers: int, width: int, context: float) -> float:
    """Floating-point operations of a token in a forward pass: 2 N + 4 · L · H · T; arguments as those of `training_flops`."""
    return 2.0 * matrices + 4.0 * layers * width * context


def training_flops(matrices: int, trained: int, layers: int, width: int, context: float) -> float:
    """Floating-point operations of a token, forward and backward: 4 N + 2 M + 12 · L · H · T.

    With M = N these are the 6 N + 12 · L · H · T of PaLM (arXiv 2204.02311, appendix B). Each matrix costs 2 operations a number forward, 2
    for the gradient of its input, and 2 for its own, which a frozen one has none of.

    Args:
        matrices: N, the numbers in all matrices that a token goes through, with the head and without the embedding's look-up.
        trained: M, those of them that are trained; with adapters, the numbers of these.
        layers: L.
        width: H, heads times head size.
        context: T, tokens that a token attends to, in the mean; half of a context where attention is causal.
    """
    return 4.0 * matrices + 2.0 * trained + 12.0 * layers * width * context


def model_flops_utilisation(tokens_per_second: float, flops_per_token: float, teraflops: float | None, devices: int = 1) -> float | None:
    """MFU: tokens a second times operations a token, by the peak of all devices; None where that is not known.

    Computing activations again is no operation of the model's, so checkpointing lowers it (PaLM, as above).
    """
    if teraflops is None:
        return None
    return tokens_per_second * flops_per_token / (teraflops * TERA * devices)


DEVICE_NAME = r"^(cpu|cuda(:[0-9]+)?)$"
"""What a configuration may name as the device of a model that is no policy."""


def open_device(name: str, key: str) -> Any:
    """The device of torch that a configuration names, in this process.

    Args:
        name: fits `DEVICE_NAME`.
        key: where the configuration names it.

    Raises:
        RequestError: this process sees no such device, as a worker of Ray's that has reserved none.
    """
    import torch  # not where only cards are looked up

    device = torch.device(name)
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise RequestError(
            f"{key} = {name} names no device that this process sees: reserve GPUs for what runs it, as "
            "rollout.environments.kinds.NAME.gpus does for workers, or take cpu."
        )
    return device


def cpu_has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16, by AVX-512 or AMX; others take many times as long as in float32."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with so many threads in this process meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
