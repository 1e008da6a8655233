"""Trajectories that share a row have the loss and the gradient that they have side by side, whatever makes either of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rl.learner import packing as token_scores
from rl.learner.base import PassRecord
from rl.learner.batches import rows_of
from rl.learner.config import EstimatorName, LoraConfig, ReinforceConfig
from rl.learner.local import LocalLearner
from rl.policies.policy import load_policy, save_policy
from tests.rl.toy import batches_of, gradients
from warehouse.records import Trajectory

pytestmark = pytest.mark.engine

BASE = ReinforceConfig(tasks_per_step=2, samples_per_task=4, trajectories_per_pass=3, critic={"warmup_steps": 0})


VARIANTS: dict[str, dict[str, Any]] = {
    **{estimator: {"estimator": estimator} for estimator in get_args(EstimatorName)},
    "the loss of grpo": {"loss_type": "grpo"},
    "the loss of dr_grpo": {"loss_type": "dr_grpo", "estimator": "dr_grpo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "clip_high": 5.0},
    "kl_and_entropy": {"beta": 0.1, "entropy_bonus": 0.1},
    "adapters": {"lora": LoraConfig(rank=4).model_dump(), "beta": 0.1},
    "checkpointing": {"gradient_checkpointing": True},
    "correction": {"correction": {"weights": "truncated", "reject": "sequence", "reject_above": 3.0}},
    "observations": {"mask_observations": False},
    "bfloat16": {"precision": "bfloat16"},
    "epochs": {"epochs": 2},
}


def step(policy: Path, folder: Path, config: ReinforceConfig, given: Sequence[Trajectory], joins: bool) -> tuple[float, Tensor, list[Any]]:
    """Loss, gradient and scores of an optimiser step."""
    config = config.model_copy(update={"attn_implementation": "varlen" if joins else "sdpa"})
    torch.manual_seed(5)
    learner = LocalLearner(*load_policy(policy), config, folder, 1)
    assert learner.loss.joins == joins
    if learner.loss.critic is not None:
        torch.nn.init.normal_(learner.loss.critic.head.value.weight, generator=torch.Generator().manual_seed(7))
    loss = gradients(learner, batches_of(learner, given, config))
    gradient = torch.cat([each.grad.flatten() for each in learner.loss.model.parameters() if each.grad is not None])
    scores = learner.score(rows_of(given, None))
    return loss.item(), gradient, [value for part in scores for row in part for value in row]


def compare(policy: Path, folder: Path, config: ReinforceConfig, given: Sequence[Trajectory], bound: float = 2e-6) -> None:
    (joined, gradient, scores), (apart, expected, others) = (step(policy, folder, config, given, joins) for joins in (True, False))
    assert joined == pytest.approx(apart, abs=bound)
    assert (gradient - expected).norm() < 10 * bound * expected.norm() and expected.norm() > 1e-3
    assert scores == pytest.approx(others, abs=10 * bound)


@pytest.mark.parametrize("name", VARIANTS)
def test_joined_rows_have_the_loss_and_gradient_of_padded_rows(policy: Path, stale: list[Trajectory], tmp_path: Path, name: str) -> None:
    bound = 2e-3 if name == "bfloat16" else 2e-6
    compare(policy, tmp_path, ReinforceConfig.model_validate({**BASE.model_dump(), **VARIANTS[name]}), stale, bound)


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_joined_rows_match_when_groups_share_long_prompts(policy: Path, stale: list[Trajectory], tmp_path: Path, estimator: str) -> None:
    prompts = {task: tuple(range(2, 20 + 7 * number)) for number, task in enumerate(dict.fromkeys(each.task_key for each in stale))}
    given = [replace(each, prompt_ids=prompts[each.task_key]) for each in stale]
    config = ReinforceConfig.model_validate({**BASE.model_dump(), "estimator": estimator, "trajectories_per_pass": 4})
    compare(policy, tmp_path, config, given)
    learner, record = LocalLearner(*load_policy(policy), config, tmp_path, 1), PassRecord()
    passes = batches_of(learner, given, config)
    for inputs in passes:
        learner.loss.loss(learner.loss.model, inputs, record, 0, False)
    tokens, rows = record.tokens, rows_of(given, None)
    assert len(prompts) == len(passes) == 2 and tokens.learnt == sum(row.tokens for row in rows)
    assert tokens.computed == tokens.learnt - sum((len(prompt) - 1) * 3 for prompt in prompts.values())


LEARNED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "opt": {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
}
"""Models whose positions are learnt; OPT does not tell its masks of them."""


@pytest.mark.parametrize("family", LEARNED)
def test_joined_rows_match_with_learnt_positions(policy: Path, stale: list[Trajectory], tmp_path: Path, family: str) -> None:
    """Also what the policy is held to by KL, which does not come with the learner's attention."""
    _, tokenizer = load_policy(policy)
    torch.manual_seed(4)
    sizes = {**LEARNED[family], "vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_policy(model, tokenizer, tmp_path / family)
    given = [replace(each, prompt_ids=each.prompt_ids * (1 + number % 3)) for number, each in enumerate(stale)]
    compare(tmp_path / family, tmp_path, BASE.model_copy(update={"beta": 0.1, "learning_rate": 1e-9}), given, 1e-5)
    config = BASE.model_copy(update={"attn_implementation": "sdpa"})
    learner, rows = LocalLearner(load_policy(tmp_path / family)[0], tokenizer, config, tmp_path, 1), rows_of(given, None)
    for row, scored in zip(rows, learner.score(rows).logprobs, strict=True):
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        alone = model.eval()(ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1).gather(1, ids[0, len(row.prompt_ids) :, None])
        assert scored == pytest.approx(alone[:, 0].tolist(), abs=1e-4)


def test_joined_rows_match_when_the_head_runs_in_pieces(
    policy: Path, stale: list[Trajectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_scores, "AT_ONCE", 4 * load_policy(policy)[0].config.vocab_size)
    compare(policy, tmp_path, BASE.model_copy(update={"entropy_bonus": 0.1}), stale)
