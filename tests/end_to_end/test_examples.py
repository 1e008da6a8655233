"""The projects in examples/ that have a profile, each run as its own page says, command by command, in a copy of its folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eval.sandbox.sandbox import isolation
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(2400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = {"flywheel": [sys.executable, "-m", "flows.cli"], "python": [sys.executable]}
SANDBOXED = {"arithmetic"}
SHELL = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
"""What a person's shell has: an earlier test's flow may have set that for its workers."""


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page's one block of code, by programs that are here."""
    (block,) = re.findall(r"^```\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [[*PROGRAMS[line[0]], *line[1:]] for line in lines if line]


@pytest.mark.parametrize("name", sorted(profile.parent.name for profile in EXAMPLES.glob("*/profile.toml")))
def test_an_example_runs_as_its_page_says_and_its_policy_learns(name: str, tmp_path: Path) -> None:
    if name in SANDBOXED and not isolation().granted:
        pytest.skip(f"no sandbox here: {isolation().detail}")
    folder = Path(shutil.copytree(EXAMPLES / name, tmp_path / name))
    for command in commands_of(folder / "README.md"):
        done = subprocess.run(command, cwd=folder, env=SHELL, capture_output=True, text=True, timeout=1500)
        if "cannot be fetched" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1][:300])
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr[-3000:]}"
    with Lake(folder / "runs" / name, read_only=True) as lake:
        rows = lake.query("SELECT stage, success, invalid FROM evaluations WHERE suite = 'mine' AND hops IS NULL").to_pylist()
        assert {run.state for run in lake.runs()} == {"completed"}
    success = {row["stage"]: row["success"] for row in rows}
    assert success.keys() == {"init", "sft", "rl"} and not any(row["invalid"] for row in rows)
    assert success["sft"] >= success["init"] + 0.3, "the cold start teaches what it shows"
    assert success["rl"] >= success["sft"] - 0.15
