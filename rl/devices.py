"""What GPUs give by their makers' data sheets: the yardstick of a learner's share of the peak, and what `flywheel plan` reckons with.

And the device that a configuration names for a model that is no policy, such as an encoder or a reward model; what a processor multiplies
in, and its threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from warehouse.errors import RequestError

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
