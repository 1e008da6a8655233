from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rl.envs.base import EnvironmentFault, ToolOutcome
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action
from rl.tools.python_tools import ClassTool
from tests.rl.tools.examples import Notebook
from warehouse.records import Task

TASK = Task("k", "tools", "?", ())


async def test_a_trajectory_has_an_instance_of_its_own_until_it_ends(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    notebook = ClassTool(Notebook, "notes", {"pages": 3, "journal": str(journal)})
    worlds = [ToolEnvironment({"notes": notebook}, name) for name in ("a", "b", "c")]
    for seed, world in enumerate(worlds):
        await world.reset(TASK, seed)
    for world, note in ((worlds[0], "one"), (worlds[1], "two"), (worlds[0], "three")):
        await world.step(Action("notes", note))
    assert (await worlds[0].step(Action("notes", "four"))).observation == "one; three; four"
    assert (await worlds[0].step(Action("notes", "five"))).tool_outcome is ToolOutcome.ERROR
    for world in worlds:
        await world.close()
        await world.close()
    assert sorted(journal.read_text().splitlines()) == ["create a 0", "create b 1", "release a", "release b"]


async def test_calls_of_one_turn_run_one_after_another_in_their_order() -> None:
    world = ToolEnvironment({"notes": ClassTool(Notebook, "notes", {"pages": 9})}, "a")
    steps = await asyncio.gather(*(world.step(Action("notes", str(number))) for number in range(5)))
    assert [step.observation for step in steps] == ["0", "0; 1", "0; 1; 2", "0; 1; 2; 3", "0; 1; 2; 3; 4"]


class Broken:
    def create(self, trajectory_id: str, seed: int) -> None:
        raise OSError("no room")

    def execute(self, text: str) -> str:
        return text

    def release(self) -> None:
        """Nothing."""


class Clinging(Broken):
    def create(self, trajectory_id: str, seed: int) -> None:
        """Nothing."""

    def release(self) -> None:
        raise OSError("it will not close")


async def test_a_class_that_cannot_be_opened_or_released_is_at_fault_and_the_others_are_released(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    notebook = ClassTool(Notebook, "notes", {"journal": str(journal)})
    world = ToolEnvironment({"clinging": ClassTool(Clinging, "clinging"), "broken": ClassTool(Broken, "broken"), "notes": notebook}, "a")
    with pytest.raises(EnvironmentFault, match="the tool 'broken' could not be opened: OSError: no room"):
        await world.step(Action("broken", "text"))
    for name in ("notes", "clinging"):
        assert (await world.step(Action(name, "text"))).tool_outcome is ToolOutcome.OK
    with pytest.raises(EnvironmentFault, match="the tool 'clinging' could not be released"):
        await world.close()
    assert journal.read_text().splitlines() == ["create a 0", "release a"]
