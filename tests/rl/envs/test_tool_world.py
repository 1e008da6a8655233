"""Tool worlds as environments."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from eval.graders.state import EXTRA_WRITES, REFERENCE, STATE
from rl.envs.base import EnvironmentFault, Resources, Step, ToolOutcome
from rl.envs.tool_world.environment import WORLDS, ToolWorldEnvironment, create, find_world, tools_of
from rl.renderers.base import Action
from synth.worlds.tool_tasks import generate_tasks
from warehouse.errors import RequestError
from warehouse.records import Task

TASKS = list(generate_tasks(60, seed=11))


async def opened(task: Task) -> ToolWorldEnvironment:
    environment = create(Resources())
    await environment.reset(task, seed=0)
    return environment


async def played(task: Task, calls: list[dict[str, Any]], answer: str) -> list[Step]:
    environment = await opened(task)
    steps = [await environment.step(Action(call["tool"], json.dumps(call["arguments"]))) for call in calls]
    return [*steps, await environment.step(Action("answer", answer))]


@pytest.mark.parametrize("domain", sorted(WORLDS.built_in))
def test_a_world_fits_its_schema_and_follows_from_its_seed(domain: str) -> None:
    kind = find_world(domain, {})
    for seed in range(20):
        assert kind(seed, 12).misfits() == []
        assert kind(seed, 12).digest == kind(seed, 12).digest != kind(seed + 1, 12).digest


@pytest.mark.parametrize("domain", sorted(WORLDS.built_in))
def test_every_tool_has_a_schema_that_describes_its_arguments(domain: str) -> None:
    for name, tool in tools_of(find_world(domain, {})(0, 8)).items():
        function = tool.schema["function"]
        assert function["name"] == name and function["description"]
        assert function["parameters"]["properties"]
        assert all(argument.get("description") for argument in function["parameters"]["properties"].values())


def test_the_schemas_of_a_domain_are_read_once() -> None:
    kind = find_world("bookings", {})
    first, second = tools_of(kind(0, 8)), tools_of(kind(1, 8))
    assert first["book"] is not second["book"]
    assert first["book"].parameters is second["book"].parameters


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
async def test_the_reference_calls_are_paid_and_leave_the_schema_whole(task: Task) -> None:
    answer = task.answers[0] if task.answers else "Done."
    *steps, last = await played(task, task.provenance["calls"], answer)
    assert all(step.tool_outcome is ToolOutcome.OK for step in steps)
    assert (last.reward, last.done) == (1.0, True)
    assert last.info["figures"][STATE] == task.provenance[REFERENCE]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
async def test_doing_nothing_is_not_paid(task: Task) -> None:
    assert (await played(task, [], "I do not know"))[-1].reward == 0.0


async def test_each_trajectory_has_its_own_world() -> None:
    task = next(task for task in TASKS if task.provenance[REFERENCE])
    first, second = await opened(task), await opened(task)
    for call in task.provenance["calls"]:
        await first.step(Action(call["tool"], json.dumps(call["arguments"])))
    assert (await second.step(Action("answer", "Done."))).reward == 0.0
    assert (await first.step(Action("answer", "Done."))).reward == 1.0


async def test_calls_of_one_turn_come_one_after_the_other() -> None:
    task = next(task for task in TASKS if len(task.provenance["calls"]) > 3 and task.provenance[REFERENCE])
    environment = await opened(task)
    await asyncio.gather(*(environment.step(Action(call["tool"], json.dumps(call["arguments"]))) for call in task.provenance["calls"]))
    assert (await environment.step(Action("answer", "Done."))).reward == 1.0


async def test_writes_beside_the_reference_are_counted_and_do_no_harm() -> None:
    task = next(task for task in TASKS if task.provenance["world"]["domain"] == "inventory" and task.provenance[REFERENCE])
    untouched = {"tool": "set_listed", "arguments": {"item": beside(task), "listed": False}}
    last = (await played(task, [*task.provenance["calls"], untouched], "Done."))[-1]
    assert (last.reward, last.info["figures"][EXTRA_WRITES]) == (1.0, 1)


def beside(task: Task) -> str:
    """An item that the reference leaves as it is."""
    named = task.provenance["world"]
    items = find_world("inventory", {})(named["seed"], named["size"]).state["items"]
    return next(item for item in items if not any(f"/{item}" in path for path in task.provenance[REFERENCE]))


async def test_wrong_calls_are_told_and_change_nothing() -> None:
    task = next(task for task in TASKS if task.provenance["world"]["domain"] == "bookings")
    environment = await opened(task)
    for call, outcome in (
        (Action("book", '{"flight": "F9", "passenger": "Amber"}'), ToolOutcome.ERROR),
        (Action("book", '{"flight": 3}'), ToolOutcome.ERROR),
        (Action("book", "F9"), ToolOutcome.ERROR),
        (Action("fly", "{}"), ToolOutcome.ERROR),
        (Action("find_flights", '{"origin": "Aveiro", "destination": "Aveiro"}'), ToolOutcome.MISS),
    ):
        step = await environment.step(call)
        assert (step.tool_outcome, step.info["figures"][STATE]) == (outcome, {})


async def test_a_world_that_is_no_longer_what_it_was_is_a_fault() -> None:
    world = {**TASKS[0].provenance["world"], "digest": "another"}
    with pytest.raises(EnvironmentFault, match="no longer what it was made for"):
        await opened(replace(TASKS[0], provenance={**TASKS[0].provenance, "world": world}))
    with pytest.raises(EnvironmentFault, match="names no tool world"):
        await opened(replace(TASKS[0], provenance={}))
    with pytest.raises(RequestError, match="there is no tool world 'casino'"):
        find_world("casino", {})
