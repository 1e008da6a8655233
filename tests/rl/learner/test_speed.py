"""Where a step's time went, its speed and its token error: the formulas, and that the learner tells them of every step."""

from __future__ import annotations

import math

import peft
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from rl.learner.metrics import StepTimes, StepTokens, flops_of, sampler_errors

TIMES = StepTimes(publish=2.0, collect=5.0, whole=10.0, settling=1.0, rollouts_in_settling=0.5, rollouts_in_collect=4.0)


def test_the_shares_of_a_step_add_up_to_one() -> None:
    assert TIMES.shares() == pytest.approx({"share/rollouts": 0.45, "share/waiting": 0.15, "share/sync": 0.1, "share/learning": 0.3})
    assert sum(TIMES.shares().values()) == pytest.approx(1.0)


def test_a_prompt_in_common_is_computed_once_and_attended_to_by_all_that_follow_it() -> None:
    shared, apart = (StepTokens(0).with_pass(120, spans) for spans in ([(0, 40), (40, 20), (40, 20)], [(0, 60), (0, 60)]))
    assert (shared.learnt, shared.computed) == (120, 80) and (apart.learnt, apart.computed) == (120, 120)
    assert shared.pairs == apart.pairs - 40 * 40


def test_operations_of_a_token_are_those_that_torch_counts_also_with_adapters() -> None:
    """In rows so short that attention is no matter, and but for the adapters' own way forward."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, vocab_size=400, tie_word_embeddings=True))
    peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    ids = torch.arange(8)[None]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert flops_of(model, mean_row=8) == pytest.approx(counter.get_total_flops() / 8, rel=0.07)


def test_errors_of_engine_and_learner_are_those_of_nemo_rl() -> None:
    found = sampler_errors(torch.tensor([0.1, -0.2]))
    assert found["logprob_difference"] == pytest.approx(0.2)
    assert found["token_mult_prob_error"] == pytest.approx((math.exp(0.1) + math.exp(0.2)) / 2)
    assert found["gen_kl_error"] == pytest.approx((math.exp(0.1) - 1.1 + math.exp(-0.2) - 0.8) / 2)
    assert sampler_errors(torch.zeros(3)) == {"logprob_difference": 0.0, "token_mult_prob_error": 1.0, "gen_kl_error": 0.0}
    assert math.isnan(sampler_errors(torch.tensor([math.nan, 0.0]))["logprob_difference"]), "what is no number is seen"
