"""The examples of docs/tools.md: its files are written, its commands are run, and what they print must be what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tools.md").read_text()
BLOCK = re.compile(r"^```(python|toml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> list[pytest.param]:  # type: ignore[valid-type]
    """The parts of the page that have commands; one that starts Ray is marked."""
    found = []
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        if "```console" in part:
            marks = [pytest.mark.engine, pytest.mark.long] if "\nworker = " in part else pytest.mark.slow
            found.append(pytest.param(part, id=part.partition("\n")[0], marks=marks))
    return found


def run(command: str, folder: Path) -> str:
    """What a command of the page prints, in a shell where no environment is activated."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("section", sections())
def test_examples_do_what_the_page_says(section: str, tmp_path: Path) -> None:
    for kind, text in BLOCK.findall(section):
        if kind != "console":
            (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
            continue
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            assert run(command, tmp_path).strip() == expected.strip(), command
