"""`flywheel new`: every profile that it writes is one that the commands it prints take, to the end of a dry run."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli.planning import Wanted, profile_text
from flows.config import load_config
from tests.chat_models import create_chat_model
from tests.flows.homes import flywheel

TOOLS = '''
from rl.tools import tool


@tool
def define(word: str) -> str:
    """Say what a word means.

    Args:
        word: the word.
    """
    return "a bird"


def unmarked(word: str) -> str:
    return word
'''
GIVEN = ("model", "tasks", "documents", "tools", "gpu")
COMBINATIONS = [tuple(letter == "1" for letter in chosen) for chosen in ("00000", "11111", "10101", "01010")]
"""Every option with and without each of the others, but for a few pairs."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("starter")
    create_chat_model(place / "model")
    rows = [{"question": f"What is the {n}th bird on the long list by the door?", "answers": [f"bird {n}"]} for n in range(8)]
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = [{"question": f"Which bird was seen {n} times in the long winter of the marsh?", "answers": [f"gull {n}"]} for n in range(8)]
    (place / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    spoken = [{"role": "user", "content": "Which bird stands in water?"}, {"role": "assistant", "content": "The heron."}]
    (place / "runs.jsonl").write_text(json.dumps({"messages": spoken}) + "\n")
    (place / "notes").mkdir()
    (place / "notes" / "heron.md").write_text("# Heron\n\nA heron is a bird that stands in water.\n")
    (place / "tools.py").write_text(TOOLS)
    return place


def flags(place: Path, chosen: tuple[bool, ...]) -> list[str]:
    values = {"model": "model", "tasks": "tasks.jsonl", "documents": "notes", "tools": "tools.py"}
    given = dict(zip(GIVEN, chosen, strict=True))
    found = [part for name, value in values.items() if given[name] for part in (f"--{name}", value)]
    found += ["--held-out", "held_out.jsonl"] if given["tasks"] and given["documents"] else []
    found += ["--demonstrations", "runs.jsonl"] if given["tasks"] and given["tools"] else []
    return [*found, "--gpu" if given["gpu"] else "--no-gpu"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", COMBINATIONS)
def test_the_printed_commands_lead_to_a_dry_run(
    chosen: tuple[bool, ...], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("FLYWHEEL_HOME", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = tmp_path / "mine.toml"
    printed = flywheel("new", str(file), *flags(place, chosen))
    commands = [shlex.split(line) for line in printed.splitlines() if line.startswith("  flywheel")]
    *before, run = commands
    assert run[:2] == ["flywheel", "run"] and before[-1] == [*run, "--dry-run"]
    home = ["--home", str(tmp_path / "home")]
    card = ["--set", "rollout.ray.gpus=1"] if chosen[-1] else []
    for command in before:
        arguments = [home[1] if part == "runs/mine" else part for part in command[1:]]
        shown = flywheel(*arguments, *([*card, "--json"] if "--dry-run" in arguments else []))
    assert json.loads(shown)["would_run"][-1]["stage"] == "t1-gate"
    assert load_config(str(file)).policy.path == ("model" if chosen[0] else "reader")


@pytest.mark.parametrize("chosen", COMBINATIONS)
def test_each_setting_to_try_is_one_that_the_profile_takes(chosen: tuple[bool, ...], place: Path, tmp_path: Path) -> None:
    values = ("model", "tasks.jsonl", str(place / "notes"), "tools.py")
    wanted = Wanted(*(value if on else "" for value, on in zip(values, chosen[:4], strict=True)), gpu=chosen[4])
    text, file = profile_text(wanted, Path("tools.toml")), tmp_path / "profile.toml"
    lines = text.splitlines()
    settings = [line for line in lines if re.match(r"#?[a-z_]+ = ", line) and not line.startswith("limits = ")]
    assert [line for line in settings if " # " not in line] == [], "each line says what it is"
    offered = [number for number, line in enumerate(lines) if re.match(r"#[a-z_]+ = ", line)]
    assert offered
    for number in offered:
        key = lines[number][1:].split(" = ")[0]
        section = max(place for place in range(number) if lines[place].startswith("["))
        end = next((place for place in range(number, len(lines)) if lines[place].startswith("[")), len(lines))
        rest = [line for place, line in enumerate(lines) if not (section < place < end and line.startswith(f"{key} ="))]
        rest.insert(rest.index(lines[number]), lines[number][1:])
        file.write_text("\n".join(rest))
        if not (chosen[4] and key == "mode"):  # its comment says so
            load_config(str(file))


@pytest.mark.slow
def test_on_a_terminal_it_asks_for_what_no_flag_says_and_enter_skips(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "flows.cli", "new", str(tmp_path / "mine.toml"), "--model", "smollm2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, cwd=tmp_path, env=environment) as process:
        os.write(leader, b"\n\n\ny\n\n\n")
        try:
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()  # one that still asks would be waited for
    config = load_config(str(tmp_path / "mine.toml"))
    assert config.policy.path == "models/smollm2" and config.rollout.engine.gpus == 0.5
