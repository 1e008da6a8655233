"""The wheel in an environment of its own, outside the repository: what a person has who installs the locks and then the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging import build_wheel, copy_sources
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).parent / "small.toml"


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """What a command prints that knows nothing of the repository."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")} | variables
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that install.sh made from the lock and the wheel."""
    place = tmp_path_factory.mktemp("stranger")
    wheel = build_wheel(copy_sources(place / "sources"), place)
    shutil.copytree(ROOT / "requirements", place / "requirements")
    run(
        "sh", "requirements/install.sh", folder=place, PYTHON=sys.executable, EXTRA="cpu", VENV=str(place / "venv"), PACKAGE=str(wheel),
        UV_FIND_LINKS=os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", ""),
    )  # fmt: skip
    return place / "venv" / "bin"


def test_the_command_works_without_the_repository(programs: Path, tmp_path: Path) -> None:
    assert str(programs.parent) in run(programs / "python", "-c", "import flows; print(flows.__file__)", folder=tmp_path)
    assert "flywheel" in run(programs / "flywheel", "--help", folder=tmp_path)
    dry = json.loads(run(programs / "flywheel", "run", "--profile", "quickstart", "--home", "home", "--dry-run", "--json", folder=tmp_path))
    assert dry["would_run"][0]["stage"] == "t0-init" and not (tmp_path / "home").exists()


def test_a_small_wheel_turns(programs: Path, tmp_path: Path) -> None:
    settings = ("--set", 'wheel.stages=["cpt","rl"]', "--set", "rl.steps=2", "--set", "evaluation.gate={}", "--set", "rl.filters={}")
    run(programs / "flywheel", "run", "--profile", SMALL, "--home", "home", *settings, folder=tmp_path)
    with Lake(tmp_path / "home", read_only=True) as lake:
        assert [policy.id for policy in lake.policies()] == ["t0-init", "t1-cpt", "t1-rl"]
        assert lake.query("SELECT count(*) AS n FROM trajectories WHERE stage = 'rl'").to_pylist() == [{"n": 2 * 4 * 4}]
    assert (tmp_path / "home" / "report.html").stat().st_size > 10_000
