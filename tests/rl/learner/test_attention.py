"""Sequences that share a row: what each says is what it says alone, no tensor grows with the square of the row, and who may share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rl.learner.config import LearnerConfig, OptimizerConfig
from rl.learner.packing import JoinedRows, borders, choose_attention, joins_rows, keeps_apart, set_attention, varlen_attention
from rl.policies.policy import load_policy
from rl.renderers.examples import EncodedExample
from rl.supervised.config import SftConfig
from rl.supervised.training import packed_trainer
from tests.rl.toy import make_policy
from warehouse.errors import RequestError

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 64,
}  # fmt: skip
JOINING = OptimizerConfig(attn_implementation="varlen")
LENGTHS = (7, 1, 12, 4)


def make_model(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **changes))


def sequences(lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 64, (1, length), generator=generator) for length in lengths]


def gradients(model: PreTrainedModel, states: Tensor) -> list[Tensor]:
    weighing = torch.linspace(-1, 1, states.numel()).reshape(states.shape)
    return list(torch.autograd.grad((states * weighing).sum(), list(model.base_model.parameters())))


def joined_states(model: PreTrainedModel, given: Sequence[Tensor]) -> Tensor:
    lengths = [ids.size(1) for ids in given]
    positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0)
    return model.base_model(input_ids=torch.cat(list(given), dim=1), position_ids=positions, use_cache=False, **borders(lengths))[0]


@pytest.mark.parametrize("bfloat16", [False, True])
def test_packed_sequences_have_the_same_states_and_gradients_as_alone(bfloat16: bool) -> None:
    plain, joining = make_model(), make_model()
    set_attention(joining, JOINING)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        expected = torch.cat([plain.base_model(ids, use_cache=False)[0] for ids in sequences()], dim=1)
        found = joined_states(joining, sequences())
    bound = 0.02 if bfloat16 else 1e-5
    assert (found - expected).norm() < bound * expected.norm()
    ours, theirs = (torch.cat([each.flatten() for each in gradients(*pair)]) for pair in ((joining, found), (plain, expected)))
    assert (ours - theirs).norm() < bound * theirs.norm()


def test_a_shared_prompt_is_stored_once_except_for_its_last_token() -> None:
    ids = torch.tensor([[0, 7, 8, 9, 1, 2], [0, 7, 8, 9, 3, 0], [6, 7, 8, 9, 4, 0], [0, 0, 0, 9, 5, 0], [0, 0, 0, 9, 6, 0]])
    mask = ids > 0
    rows = JoinedRows.with_shared_prompts(mask, ids, 4)
    assert rows.join(ids).tolist() == [[7, 8, 9, 1, 2, 9, 3, 6, 7, 8, 9, 4, 9, 5, 9, 6]]
    assert rows.pieces == ((2, -1), (3, 0), (2, 0), (5, -1), (2, -1), (2, -1))
    assert rows.spans == [(0, 2), (2, 3), (2, 2), (0, 5), (0, 2), (0, 2)]
    inputs = rows.inputs()
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 0, 1, 2, 3, 4, 0, 1, 0, 1]]
    assert inputs["pieces"] == rows.pieces and inputs["cu_seq_lens_q"].diff().tolist() == [2, 5, 4, 5, 2, 2]
    parted = rows.part(rows.join(ids))
    assert parted.tolist()[1] == [0, 0, 0, 9, 3, 0] and torch.equal(parted[:, 3:], ids[:, 3:])
    assert "pieces" not in JoinedRows.with_shared_prompts(mask[1:4], ids[1:4], 4).inputs()


def test_sequences_attend_to_their_shared_prefix() -> None:
    generator = torch.Generator().manual_seed(2)
    states = {name: torch.randn(1, heads, 9, 8, generator=generator) for name, heads in (("query", 4), ("key", 2), ("value", 2))}
    given = [{name: each.clone().requires_grad_() for name, each in states.items()} for _ in range(2)]
    pieces = ((4, -1), (3, 0), (2, 0))
    shared = varlen_attention(torch.nn.Module(), **given[0], attention_mask=None, **borders([4, 7, 6]), pieces=pieces)[0]
    whole = {name: each[:, :, [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 7, 8]] for name, each in given[1].items()}
    alone = varlen_attention(torch.nn.Module(), **whole, attention_mask=None, **borders([7, 6]))[0]
    torch.testing.assert_close(shared, alone[:, [0, 1, 2, 3, 4, 5, 6, 11, 12]])
    (shared[:, 4:] ** 2).sum().backward()
    (alone[:, [4, 5, 6, 11, 12]] ** 2).sum().backward()
    for name in states:
        torch.testing.assert_close(given[0][name].grad, given[1][name].grad)


OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "window": lambda: make_model(use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "cap": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, layer_types=["full_attention"] * 2)),
    "dropout": lambda: make_model(attention_dropout=0.1),
    "dropout of another name": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, attn_pdrop=0.1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_varlen_is_refused_for_models_with_other_attention(name: str) -> None:
    model = OTHERS[name]()
    loaded_with = model.config._attn_implementation
    assert choose_attention(model, OptimizerConfig(learner=LearnerConfig(gpus=1))) == loaded_with
    assert not joins_rows(model)
    with pytest.raises(RequestError, match="a window, a cap or dropout"):
        set_attention(model, JOINING)


FAMILIES: dict[str, tuple[bool, dict[str, Any]]] = {
    "mistral": (True, {"sliding_window": 4}),
    "gpt_oss": (False, {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "lfm2": (False, {"layer_types": ["conv", "full_attention"]}),
    "qwen2_vl": (False, {}),
}
"""Models that do not join rows: whether positions alone keep the sequences of a row apart, and further sizes."""


def make_family(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {**SIZES, "head_dim": 8, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, **FAMILIES[name][1]}
    if name == "qwen2_vl":
        seen = {"depth": 1, "embed_dim": 32, "num_heads": 4, "hidden_size": 32}
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
        config = AutoConfig.for_model(name, text_config={**sizes, "rope_parameters": rope}, vision_config=seen)
        model: PreTrainedModel = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes))  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.train(False)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_no_example_sees_another_in_its_row(name: str, tmp_path: Path) -> None:
    """Models that carry a state, take images, or hand no positions to their masks saw the example before in the row."""
    model = make_family(name)
    assert keeps_apart(model) == FAMILIES[name][0]
    examples = [EncodedExample(tuple(ids[0].tolist()), (True,) * ids.size(1)) for ids in sequences()]
    tokenizer = load_policy(make_policy(tmp_path / "policy"))[1]
    config = SftConfig(row_tokens=24, rows_per_step=1, rows_per_pass=1)
    trainer = packed_trainer(model, tokenizer, examples, tmp_path / "made", config, 1, masked=True)
    packed: Any = trainer.train_dataset
    rows = list(packed)
    assert max(len(row["seq_lengths"]) for row in rows) > 1
    alone = [model(input_ids=ids, labels=ids, use_cache=False).loss * (ids.size(1) - 1) for ids in sequences() if ids.size(1) > 1]
    found = []
    for row in rows:
        batch = trainer.data_collator([row])
        found.append(model(**batch, use_cache=False).loss * (batch["labels"][:, 1:] >= 0).sum())
    assert torch.stack(found).nansum().item() == pytest.approx(torch.stack(alone).sum().item(), rel=1e-4)
