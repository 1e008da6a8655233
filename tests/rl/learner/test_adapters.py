"""Low-rank adapters: what is trained is the adapters, what is written is whole policies that say what the learner says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rl.learner.config import LoraConfig, ReinforceConfig
from rl.learner.trainers import gather_policy, merge_adapters
from rl.policies.policy import load_policy
from rl.supervised.config import SftConfig
from rl.supervised.training import packed_trainer
from tests.rl.toy import Sampler, Scripted, encode_texts, learn
from warehouse.drafts import DRAFT

pytestmark = pytest.mark.engine

LORA = LoraConfig(rank=4, alpha=8)


def moved(before: Path, after: Path) -> set[str]:
    """The last part but one of the names of the weights that differ, which are of the same names and shapes."""
    old, new = (load_policy(folder)[0].state_dict() for folder in (before, after))
    assert {name: weight.shape for name, weight in old.items()} == {name: weight.shape for name, weight in new.items()}
    return {name.split(".")[-2] for name in old if not torch.equal(old[name], new[name])}


def test_merged_weights_are_the_sum_of_weight_and_product() -> None:
    weight, low, high, norm = torch.rand(3, 5), torch.rand(4, 5), torch.rand(3, 4), torch.rand(5)
    layer = "base_model.model.q_proj"
    adapted = {f"{layer}.base_layer.weight": weight, f"{layer}.base_layer.bias": norm, "base_model.model.norm.weight": norm}
    adapted |= {f"{layer}.lora_A.default.weight": low, f"{layer}.lora_B.default.weight": high}
    merged = merge_adapters(adapted, LORA)
    assert set(merged) == {"q_proj.weight", "q_proj.bias", "norm.weight"}
    assert torch.allclose(merged["q_proj.weight"], weight + 2 * high @ low)
    assert torch.equal(merged["norm.weight"], norm)


def test_merged_weights_and_adapters_give_the_same_logprobs(policy: Path, tmp_path: Path) -> None:
    config = ReinforceConfig(
        steps=4, tasks_per_step=2, samples_per_task=8, trajectories_per_pass=6, learning_rate=3e-2, save_every=2, beta=0.05, lora=LORA
    )
    sampler, figures = Sampler(), dict[int, dict[str, float]]()
    learn(policy, tmp_path, config, Scripted(sampler.collect, sampler.publish, lambda step, new: figures.update({step: new})), 1)
    assert moved(policy, tmp_path) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert max(step["logprob_difference"] for step in figures.values()) < 1e-4
    assert figures[1]["kl"] == pytest.approx(0, abs=1e-6) and figures[4]["kl"] > 1e-4

    resumed = Sampler()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).unlink()
    last = tmp_path / "checkpoints" / "checkpoint-4"
    last.rename(last.with_name(last.name + DRAFT))  # as a kill in its writing leaves it
    learn(policy, tmp_path, config, Scripted(resumed.collect, resumed.publish, lambda step, new: figures.update({step: new})), 1)
    assert resumed.versions == [2, 3, 4]
    assert max(figures[step]["logprob_difference"] for step in (3, 4)) < 1e-4


@pytest.mark.parametrize("layers", [("attn.c_proj",), ("c_attn", "c_fc")])
def test_adapters_of_transposed_layers_are_merged_correctly(policy: Path, tmp_path: Path, layers: tuple[str, ...]) -> None:
    """GPT-2's matrices are (in, out): a square one would be taken for what it is not, the others fail."""
    _, tokenizer = load_policy(policy)
    sizes = GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=len(tokenizer), n_positions=64)
    model, bare = GPT2LMHeadModel(sizes), GPT2LMHeadModel(sizes)  # type: ignore[no-untyped-call]
    config = SftConfig(lora=LORA.model_copy(update={"layers": layers}))
    trainer = packed_trainer(model, tokenizer, encode_texts(policy, ["Amber Stone"]), tmp_path, config, 1, masked=False)
    learner: Any = trainer.model
    for name, weight in learner.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    bare.load_state_dict(gather_policy(trainer, config.lora)[1])
    ids = torch.arange(10).unsqueeze(0)
    with torch.no_grad():
        found, expected = (each.eval()(ids).logits for each in (bare, learner))
    assert torch.allclose(found, expected, atol=1e-5)
