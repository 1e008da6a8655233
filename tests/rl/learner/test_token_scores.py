"""Chosen tokens are scored as the whole would score them: values, gradients, packed rows, and the trainer's own loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from rl.learner import packing as token_scores
from rl.learner.packing import can_choose, chosen_scores

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


def test_where_nothing_is_chosen_there_is_nothing_and_it_still_has_a_gradient(model: LlamaForCausalLM) -> None:
    ids = torch.zeros((1, 4), dtype=torch.long)
    logprobs, entropies = chosen_scores(model, ids, torch.zeros_like(ids, dtype=torch.bool))
    assert logprobs.shape == entropies.shape == (0,) and logprobs.sum().requires_grad


def test_other_models_and_several_workers_keep_the_head_of_trl(model: LlamaForCausalLM) -> None:
    assert can_choose(model, workers=1)
    assert not can_choose(model, workers=2)
    model.config.final_logit_softcapping = 30.0
    assert not can_choose(model, workers=1)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.size = max([self.size, *(each.numel() for each in tree_leaves(result) if isinstance(each, Tensor))])
        return result


def test_no_tensor_holds_the_logits_of_all_tokens_where_the_head_sees_the_chosen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "AT_ONCE", 16 * VOCABULARY)
    model, ids, chosen = narrow()
    with Largest() as largest:
        logprobs, _ = chosen_scores(model, ids, chosen)
        (-logprobs.sum()).backward()
    assert largest.size <= 16 * VOCABULARY
    whole_logprobs, _ = whole(model, ids, chosen)
    torch.testing.assert_close(logprobs, whole_logprobs)


TOKENS = 400


def narrow() -> tuple[LlamaForCausalLM, Tensor, Tensor]:
    """A model whose logits are far larger than its states, a row, and the half of it that is asked about."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    chosen[:, TOKENS // 2 :] = True
    return model, ids, chosen
