"""Policies whose configuration has dropout: engines sample without it, so RL scores and learns without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    FalconConfig,
    GPT2Config,
    PreTrainedConfig,
    Qwen2Config,
)

from rl.learner.batches import rows_of
from rl.learner.config import ReinforceConfig
from rl.learner.local import LocalLearner
from rl.learner.losses import remove_dropout
from rl.policies.policy import load_policy
from tests.rl.toy import sample_pairs

OLD_SIZES: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300}
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "GPT-2": GPT2Config(**OLD_SIZES),
    "Falcon": FalconConfig(**SIZES, attention_dropout=0.3, hidden_dropout=0.3),
    "Qwen2": Qwen2Config(**SIZES, num_key_value_heads=2, attention_dropout=0.3),
}


@torch.no_grad()
def difference_by_training(model: Any) -> float:
    """The largest difference of logits in training to those in use."""
    ids = torch.arange(60).reshape(2, 30)
    return (model.train()(ids).logits - model.eval()(ids).logits).abs().max().item()


@pytest.mark.parametrize("name", CONFIGS)
def test_all_dropout_is_removed(name: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager")
    assert difference_by_training(model) > 1e-3
    remove_dropout(model)
    assert difference_by_training(model) == 0


@pytest.mark.engine
def test_a_learner_in_training_scores_what_was_sampled_as_the_sampler_did(policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(GPT2Config(**OLD_SIZES, bos_token_id=None, eos_token_id=None)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    sampled = sample_pairs(folder)
    config = ReinforceConfig(steps=1, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=3)
    learner, rows = LocalLearner(*load_policy(folder), config, tmp_path, 1), rows_of(sampled, None)
    assert learner.loss.model.training
    for row, scored in zip(rows, learner.score(rows).logprobs, strict=True):
        own = [score for score, acted in zip(scored, row.action_mask, strict=True) if acted]
        assert own == pytest.approx([score for score, acted in zip(row.logprobs, row.action_mask, strict=True) if acted], abs=1e-5)
    learner.write(tmp_path / "written")
    assert AutoConfig.from_pretrained(tmp_path / "written").attn_pdrop == 0
