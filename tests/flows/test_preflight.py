"""What a configuration names, needs of the disk and finds installed is checked before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import Qwen2Tokenizer

from flows import doctor
from flows.config import load_config
from flows.doctor import Check, diagnose, model, versions
from flows.preflight import check_teacher, disk_needed, preflight
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from rl.policies.tokenization import SPECIAL_TOKENS, TAG_TOKENS
from rl.rollouts.config import RolloutConfig
from tests.flows.homes import SMALL
from tests.ports import free_port
from tests.rl.conftest import create_tiny_policy
from warehouse.errors import RequestError


def unreachable(setting: str = "synth.teacher") -> list[str]:
    return [f"{setting}.{rest}" for rest in ("kind=openai", "model=m", f"base_url=http://127.0.0.1:{free_port()}/v1")]


def test_a_teacher_is_looked_for_only_where_questions_are_still_to_be_made() -> None:
    config = load_config("quickstart", unreachable())
    preflight(config, synthesis=())
    with pytest.raises(RequestError, match=r"^synth\.teacher\.base_url"):
        preflight(config, synthesis=(1,))
    check_teacher(config, 1, "webshaper")
    later = load_config("quickstart", unreachable("later.synth.teacher"))
    preflight(later, synthesis=(1,))
    with pytest.raises(RequestError, match=r"^later\.synth\.teacher\.base_url"):
        preflight(later, synthesis=(2,))


def test_a_home_can_be_read_without_its_data_and_no_run_begins(tmp_path: Path) -> None:
    config = load_config("quickstart", ["corpus.kind=files", f"corpus.path={tmp_path / 'gone'}"])
    with pytest.raises(RequestError, match=r"^corpus\.path: there is no folder"):
        preflight(config, synthesis=())


def test_adapters_are_refused_where_embeddings_of_new_tags_would_stay_untrained(tmp_path: Path) -> None:
    known = create_tiny_policy(tmp_path / "known", seed=0)
    model, ours = load_policy(known)
    vocabulary = [token for token in ours.get_vocab() if token not in SPECIAL_TOKENS]
    foreign = Qwen2Tokenizer(vocab={token: number for number, token in enumerate(vocabulary)}, merges=[])
    save_policy(model, foreign, tmp_path / "foreign")

    def check(model: str, *overrides: str) -> None:
        path = [f"policy.path={tmp_path / model}", "rollout.limits.max_context_tokens=200", 'wheel.stages=["sft", "rl"]']
        preflight(load_config(SMALL, [*path, *overrides]))

    with pytest.raises(RequestError) as refused:
        check("foreign", "sft.lora.rank=4")
    assert "sft.lora" in str(refused.value) and f" {len(TAG_TOKENS)} tokens" in str(refused.value)
    check("foreign", "rl.lora.rank=4")  # SFT has trained them by then
    check("known", "sft.lora.rank=4")


def test_each_command_needs_room_for_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, free = load_config(SMALL), [0]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    asked = {stage: sum(disk_needed(config, stages=[stage]).values()) for stage in ("init", "sft", "rl")}
    for stage, needed in asked.items():
        free[0] = needed
        preflight(config, tmp_path, stages=[stage])
        free[0] = needed - 1
        with pytest.raises(RequestError, match=r"GiB free, .* GiB will be written"):
            preflight(config, tmp_path, stages=[stage])
    assert 8 * asked["init"] <= asked["sft"] + asked["init"] < asked["rl"] + asked["init"], "checkpoints are what costs"


def test_what_an_iteration_needs_follows_from_the_weights_and_the_stages(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.zeros((10, 30), np.float32), "b": np.zeros(200, np.float16)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_bytes(bytes(9_000))
    weights = 4 * 500  # four bytes a number in what is written, whatever they are read from
    checkpoints, published = 2 * 3 * weights, 3 * weights
    for stages in ('["cpt", "sft", "rl"]', '["rl"]'):
        config = load_config(SMALL, [f"policy.path={tmp_path}", f"wheel.stages={stages}"])
        assert sum(disk_needed(config).values()) == (len(config.wheel.stages) + 1) * weights + checkpoints + published
    config = load_config(SMALL, [f"policy.path={tmp_path}", 'wheel.stages=["sft"]'])
    assert sum(disk_needed(config).values()) == 2 * weights + checkpoints, "nothing is published where no engine learns of it"
    half = load_config(SMALL, [f"policy.path={tmp_path}", 'wheel.stages=["sft", "rl"]', "sft.policy_dtype=bfloat16"])
    assert sum(disk_needed(half).values()) == 2.5 * weights + checkpoints + published, "checkpoints stay in float32"
    config = load_config(SMALL, [f"policy.path={tmp_path}", 'wheel.stages=["rl"]', "rollout.engine.dtype=bfloat16"])
    assert sum(disk_needed(config).values()) == 2 * weights + checkpoints + published / 2, "engines are given theirs"


def test_every_check_has_a_detail_and_advice_unless_ok() -> None:
    checks = diagnose()
    assert len({check.name for check in checks}) == len(checks) >= 15
    assert all(check.detail for check in checks)
    assert all(bool(check.advice) == (check.state != "ok") for check in checks)


def test_a_broken_installation_is_a_finding() -> None:
    def broken() -> Check:
        raise RuntimeError("operator torchvision::nms does not exist")

    finding = doctor.run("transformers", broken)
    assert (finding.name, finding.state) == ("transformers", "missing")
    assert "torchvision::nms" in finding.detail


def test_a_package_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.doctor.requires", lambda name: ["ray>=99", "nonesuch", 'absent; extra == "dev"'])
    found = versions()
    assert found.state == "missing"
    assert ">=99" in found.detail and "nonesuch is not installed" in found.detail and "absent" not in found.detail


@pytest.mark.slow
def test_a_model_is_loaded_and_its_dialect_proven(tmp_path: Path) -> None:
    config = RolloutConfig()
    folder = create_policy(PolicyConfig(layers=1, width=32, heads=2, key_value_heads=2), ["a b c"] * 50, (), tmp_path / "model", 0)
    assert model(folder, config).state == "ok"
    chat = model(folder, RolloutConfig(dialect="chat"))
    assert chat.state == "missing" and "template" in chat.detail, "a policy from scratch has no chat template"
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    assert model(folder, config).state == "missing"
    assert "config.json" in model(tmp_path, config).detail
