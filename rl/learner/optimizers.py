"""Optimizers of all stages: AdamW, or Muon on hidden matrices with AdamW on everything else.

Muon (K. Jordan, 2024) steps along the orthogonalized momentum; small policies learn lookup and copying much sooner with it
(docs/small_policies.md). Both are torch's, joined because a trainer holds a single optimizer. Muon batches matrices of the same shape,
since one by one they take a fifth of a small policy's pre-training time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl.hardware import cpu_has_bfloat16
from rl.learner.config import OptimizerConfig


class StackedMuon(torch.optim.Muon):
    """torch's Muon (`adjust_lr_fn` None), bit-identical, with matrices of the same shape batched.

    CPUs without bfloat16 iterate in float32, because emulation would dominate the step.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step; closures are not supported."""
        if closure is not None:
            raise ValueError("StackedMuon takes no closure")
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes[matrix.shape].append(matrix)
            for matrices in shapes.values():
                self._move(matrices, group)

    def _move(self, matrices: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        updates = []
        for matrix in matrices:
            state, gradient = self.state[matrix], matrix.grad
            assert gradient is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            updates.append(gradient.lerp(mean, momentum) if group["nesterov"] else mean)
        stacked = torch.stack(updates)
        stacked = stacked if stacked.device.type == "cpu" and not cpu_has_bfloat16() else stacked.bfloat16()
        directions = orthogonalised(stacked, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = matrices[0].shape
        for matrix, direction in zip(matrices, directions, strict=True):
            matrix.mul_(1 - rate * group["weight_decay"])
            matrix.add_(direction, alpha=-rate * math.sqrt(max(1, rows / columns)))


def orthogonalised(matrices: Tensor, coefficients: Sequence[float], steps: int, least: float) -> Tensor:
    """Bring the singular values of matrices (N, rows, columns) near 1 by Newton-Schulz iterations (K. Jordan, 2024).

    Each X, wide and divided by its norm (at least `least`), becomes aX + (bA + cA²)X with A = XXᵀ.
    """
    a, b, c = coefficients
    tall = matrices.size(1) > matrices.size(2)
    found = matrices.mT if tall else matrices
    found = found / found.flatten(1).norm(dim=1).clamp(min=least)[:, None, None]
    for _ in range(steps):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.mT if tall else found


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon on hidden matrices, AdamW on embeddings, heads and vectors; one schedule scales both learning rates."""

    def __init__(self, model: nn.Module, muon: dict[str, Any], adamw: dict[str, Any]) -> None:
        """`muon` and `adamw` are keyword arguments of the two optimizers."""
        hidden, others = split_parameters(model)
        self._parts = (StackedMuon(hidden, **muon), torch.optim.AdamW(others, **adamw))
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both; closures are not supported."""
        if closure is not None:
            raise ValueError("MuonWithAdamW takes no closure")
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both and relink their groups, which are new objects after loading."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self._parts for group in part.param_groups]


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trained hidden matrices, and all other trained parameters."""
    outer = {id(parameter) for part in _embeddings(model) for parameter in part.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in outer]
    inner = {id(parameter) for parameter in hidden}
    return hidden, [parameter for parameter in trained if id(parameter) not in inner]


def optimizer_factory(config: OptimizerConfig) -> tuple[Any, dict[str, Any]] | None:
    """`optimizer_cls_and_kwargs` for a transformers trainer; None for its own AdamW."""
    if config.optimizer == "adamw":
        return None
    adamw = {"lr": config.learning_rate, "betas": (config.beta1, config.beta2), "weight_decay": config.weight_decay}
    muon = {"lr": config.muon_learning_rate, "weight_decay": config.weight_decay}
    return _factory, {"muon": muon, "adamw": adamw}


def _factory() -> type[MuonWithAdamW]:
    """Factory, which transformers calls for optimizers that need the whole model."""
    return MuonWithAdamW


def _embeddings(model: nn.Module) -> list[nn.Module]:
    ends = (getattr(model, name)() for name in ("get_input_embeddings", "get_output_embeddings") if hasattr(model, name))
    return [part for part in ends if part is not None]
