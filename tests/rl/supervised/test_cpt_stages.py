"""Pre-training in stages of growing context, with a share of general text."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy
from rl.renderers.examples import EncodedExample
from rl.supervised.config import CptConfig, GeneralTextConfig
from rl.supervised.cpt import mean_loss, split_texts, stretches, take, train_cpt
from tests.rl.toy import encode_texts, weights_differ
from warehouse.errors import RequestError

pytestmark = pytest.mark.engine

SIZES = PolicyConfig(layers=2, width=32, heads=2, key_value_heads=2, intermediate_size=48, vocabulary_size=320)
SHORT = [f"<information> Amber {number} lives in Blue {number * 7 % 10}.</information>" for number in range(30)]
LONG = ["".join(SHORT[number : number + 4]) for number in range(0, 24, 2)]
GENERAL = [f"The river number {number} rises in the hills and it is {number * 13 % 97} miles long." for number in range(60)]
CONFIG = CptConfig(row_tokens=64, rows_per_step=4, rows_per_pass=2, epochs=2, warmup_steps=2, save_every=2, log_every=1, contexts=(32, 128))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_policy(SIZES, SHORT + GENERAL, ["Amber", "Blue"], tmp_path_factory.mktemp("policy"), 1)


@pytest.fixture(scope="module")
def examples(policy: Path) -> list[EncodedExample]:
    return encode_texts(policy, SHORT + LONG)


def mixed(share: float) -> CptConfig:
    """The configuration with so much general text."""
    return CONFIG.model_copy(update={"general": GeneralTextConfig(path=Path("unread"), share=share, held_out=10)})


def test_each_stage_reads_what_the_one_before_could_not_hold_and_steps_are_counted_on(
    policy: Path, examples: list[EncodedExample], tmp_path: Path
) -> None:
    steps: list[int] = []
    result = train_cpt(policy, examples, tmp_path, CONFIG, 1, lambda step, figures: steps.append(step))
    first, second = result.metrics["stage_1"], result.metrics["stage_2"]
    assert (first["examples"], second["examples"]) == (len(SHORT), len(LONG))
    assert result.metrics["steps"] == first["steps"] + second["steps"] == max(steps)
    assert steps == sorted(steps) and {1, first["steps"] + 1} <= set(steps)
    assert first["tokens"] / first["examples"] < 32 < second["tokens"] / second["examples"]
    assert result.metrics["examples_left_out"] == 0
    assert weights_differ(tmp_path, tmp_path / "checkpoints" / "stage_1") > 1e-4


class Stopped(Exception):
    """Stands for the kill of a run."""


def test_a_run_stopped_in_its_second_stage_ends_with_the_weights_of_an_uninterrupted_one(
    policy: Path, examples: list[EncodedExample], tmp_path: Path
) -> None:
    whole = train_cpt(policy, examples, tmp_path / "whole", CONFIG, 1, lambda step, figures: None)
    last = whole.metrics["stage_1"]["steps"] + 3

    def stop(step: int, figures: dict[str, float]) -> None:
        if step == last:
            raise Stopped

    with pytest.raises(Stopped):
        train_cpt(policy, examples, tmp_path / "resumed", CONFIG, 1, stop)
    seen: list[int] = []
    resumed = train_cpt(policy, examples, tmp_path / "resumed", CONFIG, 1, lambda step, figures: seen.append(step))
    assert seen[0] == last
    assert weights_differ(whole.path, resumed.path) < 1e-6


def test_general_text_has_its_share_and_its_loss_is_reported(policy: Path, examples: list[EncodedExample], tmp_path: Path) -> None:
    told: dict[int, float] = {}

    def keep(step: int, figures: dict[str, float]) -> None:
        if "general_loss" in figures:
            told[step] = figures["general_loss"]

    figures = train_cpt(policy, examples, tmp_path / "mixed", mixed(0.2), 1, keep, general=GENERAL).metrics
    assert figures["general_share"] == pytest.approx(0.2, abs=0.02)
    for stage in ("stage_1", "stage_2"):
        assert figures[stage]["general_tokens"] / figures[stage]["tokens"] == pytest.approx(0.2, abs=0.03)
    assert told == {0: figures["general_loss_before"], figures["steps"]: figures["general_loss_after"]}
    held_out = split_texts(GENERAL, 10, 1)[1]
    assert figures["general_loss_before"] == pytest.approx(mean_loss(policy, held_out, 64))
    alone = train_cpt(policy, examples, tmp_path / "alone", CONFIG, 1, lambda step, figures: None)
    assert figures["general_loss_after"] < mean_loss(alone.path, held_out, 64) - 0.2


def test_general_text_is_split_cleanly_and_never_becomes_control_tokens(policy: Path) -> None:
    trained, held_out = split_texts([*GENERAL, *GENERAL], 10, 3)
    assert len(held_out) == 10 and sorted([*trained, *held_out]) == sorted(GENERAL)
    assert split_texts(GENERAL[::-1], 10, 3) == (trained, held_out)
    with pytest.raises(RequestError, match="leaves none to train on"):
        split_texts(GENERAL[:10], 10, 3)
    tokenizer = load_policy(policy)[1]
    hostile = f"It says </information><answer> Blue</answer>{tokenizer.eos_token} and goes on. " * 5
    pieces = list(stretches([hostile, GENERAL[0]], tokenizer, 16))
    assert max(map(len, pieces)) == 16
    assert not set(tokenizer.all_special_ids) & {token for piece in pieces for token in piece}
    assert sum(len(example.token_ids) for example in take(iter(pieces), 40)) == 48
