"""Placement of engines and learners on machines, and the profiles for GPUs: they find room, and fit on the cards that they name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.homes import overrides
from flows.config import FlywheelConfig, load_config
from flows.placement import check_placement, learner_threads, phases, place_phase
from flows.sizing.plan import SizingPlan, assumed, plan_of
from rl.engines.config import EngineConfig
from rl.hardware import DEVICES, GIB
from rl.placement import Machine
from tests.chat_models import create_chat_model
from tests.flows.homes import SMALL, flywheel
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
    with pytest.raises(RequestError, match="no room for"):
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
    declared = overrides([f"policy.path={model}", f"rollout.ray.gpus={sum(MACHINES[profile])}", "rollout.ray.address=null"])
    told = json.loads(flywheel("run", "--profile", profile, "--home", tmp_path / "home", "--dry-run", "--json", *declared))
    stages = [step["stage"] for step in told["would_run"]]
    assert not (tmp_path / "home").exists()
    assert stages[:2] == ["t0-init", "t1-synth"] and stages[-1] == "t1-gate" and {"t1-sft", "t1-rl"} <= set(stages)


FOUR_AND_FOUR = ("rollout.engine.count=4", "rollout.engine.gpus=1", "rl.learner.workers=4", "rl.learner.gpus=1")


def refusal(overrides: Sequence[str]) -> str:
    with pytest.raises(RequestError) as refused:
        check_placement(load_config(SMALL, overrides))
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def test_engines_and_the_learner_of_every_stage_are_placed_together() -> None:
    config = load_config(SMALL, [*FOUR_AND_FOUR, "sft.learner.workers=2"])
    found = {phase.name: {each.key: len(each.bundles) for each in phase.reservations} for phase in phases(config)}
    rollouts = {"rollout.engine": 4, "rollout.environments": 1}
    assert found == {"evaluation": rollouts, "the stage sft": {**rollouts, "sft.learner": 2}, "the stage rl": {**rollouts, "rl.learner": 4}}


@pytest.mark.slow
def test_a_reservation_without_room_is_refused_by_its_key_and_by_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_placement(load_config(SMALL, [*FOUR_AND_FOUR, "rollout.ray.gpus=8"]))
    said = refusal([*FOUR_AND_FOUR, "rollout.ray.gpus=7"])
    assert said.startswith("rl.learner: 1 GPU and 0.5 CPU") and "rollout.engine (4 times" in said and "7 GPUs" in said
    assert refusal(["rollout.engine.gpus=2", "rollout.engine.tensor_parallel=2", "rollout.ray.gpus=1"]).startswith("rollout.engine: 2 GPUs")
    asked = overrides([*FOUR_AND_FOUR, "rollout.ray.gpus=7"])
    with pytest.raises(RequestError, match=r"rl\.learner"):
        flywheel("run", "--profile", SMALL, "--home", tmp_path / "home", "--dry-run", *asked)
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_the_gpus_are_those_that_cuda_visible_devices_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert "rollout.ray.gpus = 8 exceeds the 3 of CUDA_VISIBLE_DEVICES" in refusal([*FOUR_AND_FOUR, "rollout.ray.gpus=8"])
    monkeypatch.setattr("ray._private.accelerators.nvidia_gpu.NvidiaGPUAcceleratorManager.get_current_node_num_accelerators", lambda: 8)
    assert "this machine with 3 GPUs" in refusal(FOUR_AND_FOUR)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    check_placement(load_config(SMALL, FOUR_AND_FOUR))


def test_a_learner_that_runs_during_rollouts_leaves_engines_on_cpus_their_threads() -> None:
    two = EngineConfig(count=2, threads=3)
    assert learner_threads(in_turns=True, engines=two, there=16) == 16
    assert learner_threads(in_turns=False, engines=two, there=16) == 10
    assert learner_threads(in_turns=False, engines=two, there=4) == 1, "at least one"
    assert learner_threads(in_turns=False, engines=EngineConfig(gpus=1), there=16) == 16
