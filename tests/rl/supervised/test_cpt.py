"""Pre-training: packed examples do not see each other, and a stopped run ends like one that was not."""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from rl.learner.optimizers import StackedMuon, split_parameters
from rl.learner.packing import row_positions
from rl.learner.trainers import last_checkpoint
from rl.policies.policy import load_policy
from rl.renderers.examples import IGNORED_LABEL, EncodedExample
from rl.supervised.config import CptConfig
from rl.supervised.cpt import train_cpt
from rl.supervised.training import PackingCollator, pack_examples, split_examples
from tests.rl.supervised.conftest import Stopped, quiet, stop_at
from tests.rl.toy import encode_texts, weights_differ

pytestmark = pytest.mark.engine

CONFIG = CptConfig(row_tokens=64, rows_per_step=2, rows_per_pass=1, epochs=2, warmup_steps=2, save_every=5, log_every=1)


@pytest.fixture(scope="module")
def model(policy: Path) -> PreTrainedModel:
    return load_policy(policy)[0].eval()


def encoded(*lengths: int) -> list[EncodedExample]:
    return [EncodedExample(tuple(20 + (7 * size + place) % 200 for place in range(size)), (True,) * size) for size in lengths]


def test_rows_hold_all_tokens_and_no_example_is_cut() -> None:
    examples = encoded(30, 20, 10, 8, 5, 100)
    rows = pack_examples(examples, 40, masked=False)
    pieces = []
    for row in rows:
        assert sum(row["seq_lengths"]) == len(row["input_ids"]) <= max(40, row["seq_lengths"][0])
        ends = torch.tensor(row["seq_lengths"]).cumsum(0).tolist()
        pieces += [tuple(row["input_ids"][end - size : end]) for end, size in zip(ends, row["seq_lengths"], strict=True)]
    assert sorted(pieces) == sorted(example.token_ids for example in examples)
    assert len(rows) == 3


def test_no_label_crosses_the_border_between_examples() -> None:
    batch = PackingCollator(0)(list(pack_examples(encoded(10, 6), 32, masked=False)))
    assert batch["position_ids"].tolist() == [row_positions([10, 6])]
    assert (batch["labels"][0] == IGNORED_LABEL).nonzero().flatten().tolist() == [0, 10]


def test_unfinished_checkpoints_are_passed_over(tmp_path: Path) -> None:
    for step, state in ((5, "{}"), (10, '{"global_'), (15, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-5"
    assert last_checkpoint(tmp_path / "nothing") is None


@pytest.mark.parametrize("bfloat16", [True, False])
def test_muon_on_matrices_of_one_shape_at_once_is_torchs(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, bfloat16: bool) -> None:
    """Bit by bit in bfloat16; within its rounding in float32, which processors take that have none."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    models, settings = (copy.deepcopy(model), copy.deepcopy(model)), {"lr": 0.01, "weight_decay": 0.1}
    optimizers = [kind(split_parameters(each)[0], **settings) for kind, each in zip((StackedMuon, torch.optim.Muon), models, strict=True)]
    ids = torch.arange(24).reshape(2, 12)
    for _ in range(3):
        for each, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            each(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    moved = [(ours - before).norm() for before, ours in zip(model.parameters(), models[0].parameters(), strict=True)]
    apart = [(ours - theirs).norm() for ours, theirs in zip(*(each.parameters() for each in models), strict=True)]
    assert all(distance <= 0.1 * way for distance, way in zip(apart, moved, strict=True))
    assert all(distance == 0 for distance in apart) is bfloat16


def test_held_out_examples_are_the_same_whatever_their_order_and_no_text_is_on_both_sides() -> None:
    examples = [EncodedExample((number % 150, 7), (True, True)) for number in range(300)]
    trained, held_out = split_examples(examples, 0.2)
    assert not {example.token_ids for example in trained} & {example.token_ids for example in held_out}
    assert 30 < len(held_out) < 100 and len(trained) + len(held_out) == 300
    assert {example.token_ids for example in split_examples(examples[::-1], 0.2)[1]} == {example.token_ids for example in held_out}
    assert split_examples(examples, 0.0) == (examples, [])


UNTIL_IT_RISES = CONFIG.model_copy(update={"held_out_share": 0.3, "patience": 2, "save_every": 5, "epochs": 40, "learning_rate": 5e-3})


@pytest.fixture(scope="module")
def noise(policy: Path) -> list[EncodedExample]:
    """Texts of which nothing can be learnt for others."""
    chance = random.Random(1)
    return encode_texts(policy, [" ".join(f"Amber {chance.randrange(10**6)}" for _ in range(4)) for _ in range(30)])


def test_training_ends_where_the_held_out_loss_rises_and_leaves_the_policy_of_the_lowest(
    policy: Path, noise: list[EncodedExample], tmp_path: Path
) -> None:
    losses: dict[int, float] = {}

    def keep(step: int, figures: dict[str, float]) -> None:
        if "eval_loss" in figures:
            losses[step] = figures["eval_loss"]

    result = train_cpt(policy, noise, tmp_path, UNTIL_IT_RISES, 1, keep)
    lowest = min(losses, key=losses.__getitem__)
    assert max(losses) == lowest + 10 == result.metrics["steps"]
    assert result.metrics["held_out_loss"] == pytest.approx(losses[lowest])
    held_out = split_examples(noise, 0.3)[1]
    assert result.metrics["held_out"] == len(held_out) > 2
    assert mean_loss(load_policy(result.path)[0], held_out) == pytest.approx(losses[lowest], abs=1e-3)


def test_a_resumed_run_ends_where_the_held_out_loss_rose_also_where_it_had_ended_there(
    policy: Path, noise: list[EncodedExample], tmp_path: Path
) -> None:
    """The run is stopped between the two checkpoints that its patience lasts for, and, ended, asked for once more."""
    whole = train_cpt(policy, noise, tmp_path / "whole", UNTIL_IT_RISES, 1, quiet)
    end = whole.metrics["steps"]
    with pytest.raises(Stopped):
        train_cpt(policy, noise, tmp_path / "stopped", UNTIL_IT_RISES, 1, stop_at(end - 2))
    for _ in ("gone on with", "asked for again"):
        resumed = train_cpt(policy, noise, tmp_path / "stopped", UNTIL_IT_RISES, 1, quiet)
        assert resumed.metrics["steps"] == end
        assert resumed.metrics["held_out_loss"] == whole.metrics["held_out_loss"]
        assert weights_differ(whole.path, resumed.path) == 0


@torch.no_grad()
def mean_loss(model: PreTrainedModel, examples: list[EncodedExample]) -> float:
    """Mean over packed rows of the mean over their tokens, as the trainer takes it."""
    batches = [PackingCollator(0)([row]) for row in pack_examples(examples, CONFIG.row_tokens, masked=False)]
    return torch.stack([model(**batch, use_cache=False).loss for batch in batches]).mean().item()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stopped_run_resumes_and_ends_like_an_uninterrupted_one(
    policy: Path, examples: list[EncodedExample], tmp_path: Path, optimizer: str
) -> None:
    config = CONFIG.model_copy(update={"optimizer": optimizer})
    losses: dict[int, float] = {}
    whole = train_cpt(policy, examples, tmp_path / "whole", config, 1, lambda step, figures: losses.update({step: figures["loss"]}))
    with pytest.raises(Stopped):
        train_cpt(policy, examples, tmp_path / "resumed", config, 1, stop_at(8))
    seen: list[int] = []
    resumed = train_cpt(policy, examples, tmp_path / "resumed", config, 1, lambda step, figures: seen.append(step))

    assert seen[0] == 6
    assert list(losses) == list(range(1, whole.metrics["steps"] + 1))
    assert losses[whole.metrics["steps"]] < losses[1] - 0.3
    assert weights_differ(whole.path, resumed.path) < 1e-6
    assert weights_differ(whole.path, policy) > 1e-3

    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "checkpoint-5", ignore_errors=True)
    again = train_cpt(policy, examples, tmp_path / "resumed", config, 1, stop_at(8))
    assert weights_differ(whole.path, again.path) < 1e-6
    assert again.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-6)
