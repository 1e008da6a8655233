"""The wheel, built from a copy of the sources, so that the repository is not written to and no other file of it gets in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("warehouse", "eval", "rl", "synth", "flows")
FOLDERS = (*PACKAGES, "profiles")
"""What is installed."""


def copy_sources(to: Path) -> Path:
    """A folder that holds what the wheel is built from, and no more."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    return to


def build_wheel(sources: Path, to: Path) -> Path:
    """The wheel of `sources`, by the backend that pyproject.toml names and that is installed here."""
    command = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"
    to.mkdir(parents=True, exist_ok=True)
    build = subprocess.run([sys.executable, "-c", command, str(to)], cwd=sources, capture_output=True, text=True, timeout=200)
    assert build.returncode == 0, build.stderr[-2000:]
    (wheel,) = to.glob("*.whl")
    return wheel
