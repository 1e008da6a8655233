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
from flows.home import Home
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


@pytest.mark.parametrize("profile", MACHINES)
def test_the_cold_start_has_examples_for_many_steps_and_rl_trains_on_no_task_of_the_gate(profile: str, tmp_path: Path) -> None:
    config = load_config(profile, [f"policy.path={sizes_in(tmp_path, '0.5')}"])
    steps = {stage.stage: stage.steps for stage in planned(config, 79.0).stages}
    assert config.wheel.stages == ("sft", "rl") and config.rollout.dialect == "chat"
    assert (steps["sft"] or 0) >= 50
    drawn, wanted = config.rl.steps * config.rl.tasks_per_step, sum(config.synth.webshaper.wanted().values())
    assert wanted >= config.rl.tasks_per_step * 10 and drawn / wanted <= 10, "no task is seen much more often than any pass over data would"
    assert config.evaluation.gate and config.evaluation.suites


def test_a_model_that_is_too_large_is_said_to_be_with_what_is_largest_and_what_to_do(tmp_path: Path) -> None:
    found = planned(load_config("one_gpu", [f"policy.path={sizes_in(tmp_path, '7')}"]), 79.0)
    assert [card.fits for card in found.cards] == [False, False, False]
    assert "learner, optimiser" in found.changes[0] and "set sft.lora" in found.changes[0]
    adapted = load_config("one_gpu", [f"policy.path={tmp_path}", "sft.lora.rank=16", "rl.lora.rank=16"])
    assert [card.name for card in planned(adapted, 79.0).cards if not card.fits] == []


def test_weights_that_are_sent_take_no_time_of_the_disk_and_files_are_of_the_engines_dtype(tmp_path: Path) -> None:
    model = f"policy.path={sizes_in(tmp_path, '7')}"

    def seconds(*overrides: str) -> float:
        found = planned(load_config("eight_gpus", [model, *overrides]), 79.0)
        times = next(stage.seconds for stage in found.stages if stage.stage == "rl")
        assert times is not None
        return times["weights"]

    by_files, numbers = seconds("rollout.engine.transfer=files"), planned(load_config("eight_gpus", [model]), 79.0).policy.parameters
    assert by_files == pytest.approx(2 * 2 * numbers / 1e9), "two bytes a number, written and read at a GB a second"
    assert seconds("rollout.engine.transfer=files", "rollout.engine.dtype=float32") == pytest.approx(2 * by_files)
    assert seconds() == pytest.approx(2 * numbers / 5e9), "sent at 5 GB a second"


def test_what_is_written_follows_from_steps_checkpoints_and_how_weights_come_to_engines(tmp_path: Path) -> None:
    base = [f"policy.path={sizes_in(tmp_path, '7')}", 'wheel.stages=["rl"]', "rl.steps=100", "rl.save_every=10"]
    numbers = planned(load_config("eight_gpus", base), 79.0).policy.parameters

    def written(*overrides: str) -> tuple[float, ...]:
        """Bytes a number of policies, checkpoints and published weights."""
        found = planned(load_config("eight_gpus", [*base, *overrides]), 79.0).written
        return tuple(found[name] / numbers for name in ("policies", "checkpoints", "published weights"))

    assert written() == (4 + 4, 10 * 12, 9 * 2), "a checkpoint behind the last step needs no record: the policy is written"
    assert written("rollout.engine.transfer=files") == (8, 120, 101 * 2), "each step's weights, and those that it began with"
    assert written("rl.policy_dtype=bfloat16", "rl.save_every=30") == (4 + 2, 4 * 12, 3 * 2)
    assert written("rl.lora.rank=16")[1] < 2, "of adapters alone"
    served = ("rl.lora.rank=16", "rollout.engine.transfer=files", "rollout.engine.adapter_rank=16")
    assert 0.1 < written(*served)[2] < 0.01 * 101 * 2, "each step's adapters, which are less than a hundredth of a version"


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


@pytest.mark.slow
def test_the_plan_is_one_json_document_or_a_table(tmp_path: Path) -> None:
    model = sizes_in(tmp_path, "7")
    arguments = ["plan", "--profile", "eight_gpus", "--set", f"policy.path={model}", "--gpus", "7"]
    shown, printed = (CliRunner().invoke(app, [*arguments, *more]) for more in ((), ("--json",)))
    assert shown.exception is None and "learner of rl" in shown.output and "device = H100" in shown.output
    record = json.loads(printed.stdout)
    assert record["no_room"].startswith("sft.learner: 1 GPU") and record["changes"][0] == record["no_room"]
    assert {stage["stage"]: stage["seconds"] is not None for stage in record["stages"]} == {"sft": True, "rl": True}
    refused = CliRunner().invoke(app, [*arguments, "--device", "abacus"])
    assert isinstance(refused.exception, RequestError) and "choose one of H200" in str(refused.exception)


def planned_by_command(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": str(columns), "FLYWHEEL_HOME": ""})
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["quickstart", *MACHINES])
@pytest.mark.parametrize("columns", [80, 120])
def test_a_plan_has_a_line_for_each_figure_at_any_width(profile: str, columns: int, tmp_path: Path) -> None:
    model = () if profile == "quickstart" else ("--set", f"policy.path={sizes_in(tmp_path, '3')}")
    lines = planned_by_command("--profile", profile, *model, columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    cards = json.loads(planned_by_command("--profile", profile, *model, "--json"))["cards"]
    shown = {" ".join(line.split()[:-1]): line.split()[-1] for line in lines if line.split()}
    for name, size in cards[0]["parts"].items():
        assert size < 0.005 * GIB or shown[name] in {f"{card['parts'].get(name, 0) / GIB:,.2f}" for card in cards}


@pytest.mark.slow
def test_a_plan_without_gpus_names_no_card_and_has_the_memory_of_the_machine(tmp_path: Path) -> None:
    record = json.loads(planned_by_command("--profile", "quickstart", "--json"))
    assert record["assumptions"]["device"] is None
    assert {card["device"] for card in record["cards"]} == {"host memory"} and record["cards"][0]["limit"] > GIB
    small = json.loads(planned_by_command("--profile", "quickstart", "--memory", "0.5", "--json"))
    assert not small["cards"][0]["fits"] and "kv_cache_gib" in small["changes"][0]
    with pytest.raises(RequestError, match="reserves no GPU"):
        planned_by_command("--profile", "quickstart", "--device", "L4")


@pytest.mark.slow
def test_a_home_is_planned_for_by_its_own_configuration(tmp_path: Path) -> None:
    Home(tmp_path / "home").claim(load_config("quickstart", ["rl.steps=7"]))
    stages = json.loads(planned_by_command("--home", str(tmp_path / "home"), "--json"))["stages"]
    assert stages[-1]["steps"] == 7
    for arguments in ((), ("--home", str(tmp_path / "none"), "--set", "rl.steps=3")):
        with pytest.raises(RequestError, match=r"--profile|no run's home"):
            planned_by_command(*arguments)
    assert not (tmp_path / "none").exists()
