"""Chosen tokens are scored as the whole would score them: values, gradients, packed rows, and the trainer's own loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from rl.learner.packing import chosen_scores

VOCABULARY = 8_200


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(1))
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    chosen[0, 4:9], chosen[1, 1:3], chosen[2, 16] = True, True, True
    return ids, chosen


def whole(model: LlamaForCausalLM, ids: Tensor, chosen: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(model(ids).logits[:, :-1] / temperature, dim=-1)
    entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(2, ids[:, 1:, None]).squeeze(2)[chosen[:, 1:]], entropies[chosen[:, 1:]]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_the_whole(model: LlamaForCausalLM, batch: tuple[Tensor, Tensor], temperature: float) -> None:
    found, entropies = chosen_scores(model, *batch, torch.ones_like(batch[0]), temperature)
    expected, spread = whole(model, *batch, temperature)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropies, spread)
    assert not entropies.requires_grad
    gradients = [torch.autograd.grad(score.square().sum(), list(model.parameters()), retain_graph=True) for score in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.size = max([self.size, *(each.numel() for each in tree_leaves(result) if isinstance(each, Tensor))])
        return result


TOKENS = 400
