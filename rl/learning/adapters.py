"""Low-rank adapters: put on a model for training, and merged into the weights wherever a policy is written.

Engines and evaluations thus load whole policies and know nothing of adapters. LoRA, arXiv 2106.09685, by peft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl.config import LoraConfig

WRAPPER = "base_model.model."
"""What peft puts before the name of each weight."""


def adapter_arguments(lora: LoraConfig | None, seed: int) -> dict[str, Any]:
    """What TRL's trainers take to train adapters; nothing where there are none.

    Torch is seeded, for a trainer draws its adapters before it seeds anything itself.
    """
    if lora is None:
        return {}
    import peft

    torch.manual_seed(seed)
    layers = list(lora.layers) or "all-linear"
    return {"peft_config": peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=layers, lora_dropout=0.0)}


def merge_adapters(weights: Mapping[str, Tensor], lora: LoraConfig | None) -> dict[str, Tensor]:
    """The weights W + alpha / rank · B A by the names of the bare model, of those of a model with adapters; § 4.1 of the paper.

    Each adapted layer has W (out, in), B (out, rank) and A (rank, in). Without adapters the weights come back as they are.
    """
    if lora is None:
        return dict(weights)
    merged = {}
    for name, weight in weights.items():
        if name.endswith(".base_layer.weight"):
            layer = name.removesuffix(".base_layer.weight")
            low, high = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            weight = weight + lora.alpha / lora.rank * (high @ low).to(weight.dtype)
        if ".lora_" not in name:
            merged[name.removeprefix(WRAPPER).replace(".base_layer.", ".")] = weight
    return merged
