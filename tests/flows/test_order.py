"""A stage that is asked for too early names the commands to run first, in their order."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from flows.config import load_config
from flows.inputs import check_before
from warehouse import Example, Lake, Policy, Run, Task
from warehouse.errors import RequestError
from warehouse.records import Part, PartKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def synthesised(turn: int) -> Run:
    return Run(f"t{turn}-synth", "synth", turn, {}, "d", 0, 1, "completed", NOW)


def policy(name: str, promoted: bool = False) -> Policy:
    return Policy(name, None, name.split("-")[1], f"policies/{name}", "d", None, promoted=promoted, wheel_turn=int(name[1]))


def commands(lake: Lake, stage: str, *settings: str, turn: int = 1, variant: str = "") -> list[str]:
    """The commands that a stage asks for, less the home."""
    try:
        check_before(lake, load_config("quickstart", settings), stage, turn, variant)
    except RequestError as error:
        return [command.replace(f" --home {lake.place.home}", "") for command in re.findall("`flywheel (.*?)`", str(error))]
    return []


def test_all_that_is_missing_is_named_once_and_in_order(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        every = ["init", "synth --turn 1", "train cpt --turn 1", "train sft --turn 1"]
        assert [commands(lake, stage) for stage in ("cpt", "sft", "rl")] == [every[:2], every[:3], every]
        lake.add([policy("t0-init"), synthesised(1)])
        assert [commands(lake, stage) for stage in ("cpt", "sft", "rl")] == [[], every[2:3], every[2:]]
        lake.add([policy("t1-cpt"), policy("t1-sft")])
        assert commands(lake, "rl") == []


def test_what_was_imported_or_made_alone_needs_no_whole_synthesis(tmp_path: Path) -> None:
    alone = 'wheel.stages=["rl"]'
    with Lake(tmp_path) as lake:
        lake.add([policy("t0-init")])
        assert commands(lake, "rl", alone) == ["synth --turn 1"]
        assert commands(lake, "rl", alone, "synth.webshaper.counts={}") == [], "synthesis makes no task: RL itself says what to import"
        lake.add([Task("k", "search", "Who?", ("Ann",))])
        assert commands(lake, "rl", alone) == []
        assert commands(lake, "rl", alone, "rl.tasks=split = 'mine'") == ["synth --turn 1"]
        lake.add([Example("e", "fas_plan", (Part(PartKind.QUESTION, "Who?"),), ())])
        assert commands(lake, "cpt") == []
