"""The profiles that people with GPUs start from: complete, placed on the machines that they are for, and small enough for their cards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.config import FlywheelConfig, load_config
from flows.placement import phases, place_phase
from flows.sizing.plan import SizingPlan, assumed, plan_of
from rl.hardware import DEVICES, GIB
from rl.placement import Machine
from tests.chat_models import create_chat_model
from warehouse.errors import RequestError

MACHINES = {"one_gpu": (1,), "eight_gpus": (8,), "cluster": (8, 8)}
QWEN = {
    "0.5": (896, 24, 14, 2, 4864, 151_936, True),
    "3": (2048, 36, 16, 2, 11_008, 151_936, True),
    "7": (3584, 28, 28, 4, 18_944, 152_064, False),
    "14": (5120, 48, 40, 8, 13_824, 152_064, False),
}
"""Hidden size, layers, heads, key-value heads, intermediate size, vocabulary and tied embeddings of Qwen2.5, by billions of parameters."""
MADE_FOR = [("one_gpu", "0.5", 22.0), ("one_gpu", "3", 79.0), ("eight_gpus", "7", 79.0), ("cluster", "7", 79.0), ("cluster", "14", 79.0)]


def sizes_in(folder: Path, billions: str) -> Path:
    """A folder with the sizes of a model and no weights."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    sizes: dict[str, Any] = dict(zip((*names, "tie_word_embeddings"), QWEN[billions], strict=True), model_type="qwen2")
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder


def planned(config: FlywheelConfig, memory_gib: float) -> SizingPlan:
    card = next(device for device in DEVICES if device.memory_gib == memory_gib)
    return plan_of(config, assumed(config, config.rollout, card))


def machines(*gpus: int) -> list[Machine]:
    return [Machine(f"node {number}", math.inf, count) for number, count in enumerate(gpus)]


@pytest.mark.parametrize("profile", MACHINES)
def test_each_finds_room_on_the_machines_that_it_is_for_and_fills_them(profile: str) -> None:
    config, there = load_config(profile), MACHINES[profile]
    for phase in phases(config):
        place_phase(phase, machines(*there))
    with pytest.raises(RequestError, match="finds no room"):
        for phase in phases(config):
            place_phase(phase, machines(*there[:-1], there[-1] - 1))


@pytest.mark.parametrize(("profile", "billions", "memory"), MADE_FOR)
def test_each_fits_on_the_cards_that_it_names_with_the_models_that_it_names(
    profile: str, billions: str, memory: float, tmp_path: Path
) -> None:
    found = planned(load_config(profile, [f"policy.path={sizes_in(tmp_path, billions)}"]), memory)
    assert [card.name for card in found.cards if not card.fits] == []
    assert max(card.total for card in found.cards) > 0.4 * memory * GIB, "and is not made for a card of half the size"
    assert float(billions) == pytest.approx(found.policy.parameters / 1e9, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("profile", MACHINES)
def test_a_dry_run_passes_with_a_chat_model_and_declared_gpus(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = create_chat_model(tmp_path / "model", positions=16_384)
    declared = [f"policy.path={model}", f"rollout.ray.gpus={sum(MACHINES[profile])}", "rollout.ray.address=null"]
    arguments = ["run", "--profile", profile, "--home", str(tmp_path / "home"), "--dry-run", "--json"]
    result = CliRunner().invoke(app, [*arguments, *(part for override in declared for part in ("--set", override))])
    assert result.exception is None, result.exception
    stages = [step["stage"] for step in json.loads(result.stdout)["would_run"]]
    assert stages[:2] == ["t0-init", "t1-synth"] and stages[-1] == "t1-gate" and {"t1-sft", "t1-rl"} <= set(stages)
