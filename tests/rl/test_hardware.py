"""The memory model: its counts against real models, and its peaks against what a process takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.memory import measure
from rl.hardware import DECODERS, Architecture, Pass, learner_memory

SMOLLM2 = Architecture(30, 576, 9, 3, 64, 1536, 49_152, True)
SIZES = {
    "num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 1536, "vocab_size": 4096,
}  # fmt: skip
QWEN_7B = Architecture(28, 3584, 28, 4, 128, 18_944, 152_064, False)


def test_parameters_are_those_of_the_models() -> None:
    assert SMOLLM2.parameters == 134_515_008, "as the model card and its file of weights have it"
    assert QWEN_7B.parameters == pytest.approx(7_615_616_512, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_the_numbers_of_a_decoder_are_those_that_transformers_makes(kind: str) -> None:
    config = AutoConfig.for_model(kind, **SIZES, pad_token_id=None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counted = Architecture.of_config(json.loads(config.to_json_string(use_diff=False)))
    assert counted.parameters == pytest.approx(model.num_parameters(), rel=2e-3)


@pytest.mark.parametrize("kind", ["ernie4_5_moe", "gpt_neox", "phi", "qwen3_5_text", "gemma4_text", "starcoder2", "lfm2", "qwen2_vl", None])
def test_unknown_architectures_are_refused(kind: str | None) -> None:
    with pytest.raises(ValueError, match=f"model_type is {kind!r}"):
        Architecture.of_config({"model_type": kind, **SIZES})


def test_states_are_sixteen_bytes_a_number_and_shards_share_them() -> None:
    whole = learner_memory(SMOLLM2, Pass(512, 512, bfloat16=True))
    assert whole.weights + whole.gradients + whole.optimiser == 16 * SMOLLM2.parameters
    shard = learner_memory(SMOLLM2, Pass(512, 512, bfloat16=True), shards=4)
    assert shard.resting == pytest.approx(whole.resting / 4, rel=1e-6)
    assert shard.activations == whole.activations


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize("critic", [False, True])
def test_the_planned_peak_is_the_measured_one_within_a_fifth(tmp_path: Path, critic: bool) -> None:
    """A process of its own takes so much; of a policy that is larger than what libraries take by the way."""
    policy = create_policy_of(tmp_path / "policy")
    row = measure(policy, 2048, None, bfloat16=False, checkpointing=False, critic=critic)
    assert row["planned"] == pytest.approx(row["measured"], rel=0.2)


def create_policy_of(folder: Path) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rl.policies.policy import save_policy
    from rl.policies.tokenization import build_tokenizer

    config = Qwen2Config(
        hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, vocab_size=12_000,
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    save_policy(Qwen2ForCausalLM(config), build_tokenizer(["some text"], 300, ()), folder)
    return folder
