"""The doctor looks at everything and is stopped by nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eval.sandbox.selftest import isolation
from flows import doctor
from flows.doctor import Check, diagnose


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return diagnose()


def test_every_check_speaks_and_advises_where_it_must(checks: list[Check]) -> None:
    assert len({check.name for check in checks}) == len(checks) >= 12
    assert all(check.detail for check in checks)
    assert all(bool(check.advice) == (check.state != "ok") for check in checks)


def test_what_the_tests_stand_on_is_found(checks: list[Check]) -> None:
    states = {check.name: check.state for check in checks}
    assert states["torch"] in ("ok", "warn")
    assert (states["duckdb"], states["ray"], states["trl"]) == ("ok", "ok", "ok")


def test_a_home_that_is_not_there_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    (disk,) = [check for check in diagnose(tmp_path / "not" / "yet") if check.name == "disk"]
    assert str(tmp_path) in disk.detail


def test_missing_data_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (data,) = [check for check in diagnose() if check.name == "shared data"]
    assert data.state == "warn"
    assert "movies" in data.advice


def test_a_broken_installation_is_a_finding() -> None:
    def broken() -> Check:
        raise RuntimeError("operator torchvision::nms does not exist")

    finding = doctor._run("transformers", broken)
    assert (finding.name, finding.state) == ("transformers", "missing")
    assert "torchvision::nms" in finding.detail


def test_the_sandbox_is_tried(checks: list[Check]) -> None:
    (sandbox,) = [check for check in checks if check.name == "sandbox"]
    assert sandbox.state == ("ok" if isolation().granted else "warn")


def test_nothing_heavy_is_imported_with_the_module() -> None:
    script = "import sys, flows.doctor; sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'ray', 'duckdb')))"
    subprocess.run([sys.executable, "-c", script], check=True)
