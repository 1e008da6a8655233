"""The doctor looks at everything and is stopped by nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows import doctor
from flows.doctor import Check, diagnose, model, versions
from rl.policies.config import PolicyConfig
from rl.rollouts.config import RolloutConfig


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return diagnose()


def test_every_check_has_a_detail_and_advice_unless_ok(checks: list[Check]) -> None:
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
    from rl.policies.policy import create_policy

    config = RolloutConfig()
    folder = create_policy(PolicyConfig(layers=1, width=32, heads=2, key_value_heads=2), ["a b c"] * 50, (), tmp_path / "model", 0)
    assert model(folder, config).state == "ok"
    chat = model(folder, RolloutConfig(dialect="chat"))
    assert chat.state == "missing" and "template" in chat.detail, "a policy from scratch has no chat template"
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    assert model(folder, config).state == "missing"
    assert "config.json" in model(tmp_path, config).detail


def test_nothing_heavy_is_imported_with_the_module() -> None:
    script = "import sys, flows.doctor; sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'ray', 'duckdb')))"
    subprocess.run([sys.executable, "-c", script], check=True)
