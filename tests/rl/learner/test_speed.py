"""The precision that a stage computes in, and the figures of its speed."""

from __future__ import annotations

import math

import peft
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rl.learner.config import BOUNDS, SMALL_POLICY, OptimizerConfig, ReinforceConfig, computes_in_bfloat16, settled
from rl.learner.metrics import StepTimes, StepTokens, flops_of, sampler_errors
from rl.learner.packing import chosen_scores

LARGE = 10 * SMALL_POLICY


@pytest.mark.parametrize(("avx512", "amx"), [(True, False), (False, True), (True, True)])
def test_only_larger_policies_use_bfloat16_on_cpus(monkeypatch: pytest.MonkeyPatch, avx512: bool, amx: bool) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    found = [computes_in_bfloat16(OptimizerConfig(), parameters) for parameters in (None, 1, SMALL_POLICY - 1, SMALL_POLICY, LARGE)]
    assert found == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("precision", "engine", "weights", "bound"),
    [
        ("float32", "float32", "none", "float32"),
        ("float32", "bfloat16", "truncated", "bfloat16"),
        ("float32", "auto", "truncated", "bfloat16"),
        ("bfloat16", "float32", "truncated", "bfloat16"),
    ],
)
def test_samples_are_weighted_and_the_weight_check_is_wide_unless_both_sides_are_float32(
    precision: str, engine: str, weights: str, bound: str
) -> None:
    config = ReinforceConfig.model_validate({"precision": precision})
    assert not config.correction.needed
    found = settled(config, engine, LARGE)
    assert (found.correction.weights, found.correction.needed) == (weights, weights != "none")
    assert found.health.weight_difference == BOUNDS[bound]


TIMES = StepTimes(publish=2.0, collect=5.0, whole=10.0, settling=1.0, rollouts_in_settling=0.5, rollouts_in_collect=4.0)


def test_the_shares_of_a_step_add_up_to_one() -> None:
    assert TIMES.shares() == pytest.approx({"share/rollouts": 0.45, "share/waiting": 0.15, "share/sync": 0.1, "share/learning": 0.3})
    assert sum(TIMES.shares().values()) == pytest.approx(1.0)


def test_a_shared_prompt_is_computed_once() -> None:
    shared, apart = (StepTokens(0).with_pass(120, spans) for spans in ([(0, 40), (40, 20), (40, 20)], [(0, 60), (0, 60)]))
    assert (shared.learnt, shared.computed) == (120, 80) and (apart.learnt, apart.computed) == (120, 120)
    assert shared.pairs == apart.pairs - 40 * 40


def test_operations_per_token_match_torchs_count() -> None:
    """In rows so short that attention is no matter, and but for the adapters' own way forward."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, vocab_size=400, tie_word_embeddings=True))
    peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    ids = torch.arange(8)[None]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert flops_of(model, mean_row=8) == pytest.approx(counter.get_total_flops() / 8, rel=0.07)


def test_sampler_errors_match_nemo_rls_definitions() -> None:
    found = sampler_errors(torch.tensor([0.1, -0.2]))
    assert found["logprob_difference"] == pytest.approx(0.2)
    assert found["token_mult_prob_error"] == pytest.approx((math.exp(0.1) + math.exp(0.2)) / 2)
    assert found["gen_kl_error"] == pytest.approx((math.exp(0.1) - 1.1 + math.exp(-0.2) - 0.8) / 2)
    assert sampler_errors(torch.zeros(3)) == {"logprob_difference": 0.0, "token_mult_prob_error": 1.0, "gen_kl_error": 0.0}
    assert math.isnan(sampler_errors(torch.tensor([math.nan, 0.0]))["logprob_difference"]), "what is no number is seen"


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
def test_chosen_scores_and_gradients_match_the_full_head(model: LlamaForCausalLM, batch: tuple[Tensor, Tensor], temperature: float) -> None:
    found, entropies = chosen_scores(model, *batch, torch.ones_like(batch[0]), temperature)
    expected, spread = whole(model, *batch, temperature)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropies, spread)
    assert not entropies.requires_grad
    gradients = [torch.autograd.grad(score.square().sum(), list(model.parameters()), retain_graph=True) for score in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
