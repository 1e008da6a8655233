"""Tool worlds by description: a real HTTP server proposes them, half broken, and what holds is kept and what does not has its reason."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval.graders.state import REFERENCE
from eval.sandbox.sandbox import isolation
from rl.envs.base import Resources
from rl.envs.tool_world.definition import read_definition
from rl.envs.tool_world.environment import create
from rl.renderers.base import Action
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.worlds.world_writer import WrittenTasks, write_world
from synth.worlds.writing_config import WrittenWorldsConfig
from tests.synth.scripted import ScriptedTeacher
from tests.synth.teachers.faulty_server import FaultyServer
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.worlds import two_domains as two
from warehouse.records import Task

pytestmark = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")
CONFIG = WrittenWorldsConfig.model_validate(
    {"descriptions": ["library.md"], "tasks": 20, "tasks_per_request": 20, "limits": {"wall_seconds": 60, "cpu_seconds": 1}}
)
TEACHER = TeacherConfig(kind="openai", model="m", timeout_seconds=2.0, first_pause_seconds=0.01)


def written(name: str, server: MisbehavingServer) -> WrittenTasks:
    description = {"library": two.LIBRARY, "clinic": two.CLINIC}[name]
    with open_teacher(TEACHER.model_copy(update={"base_url": server.url})) as teacher:
        return write_world(name, description, teacher, CONFIG, seed=1)


@pytest.fixture(scope="module", params=["library", "clinic"])
def world(request: pytest.FixtureRequest) -> tuple[str, WrittenTasks]:
    with MisbehavingServer(answer=two.world_writer) as server:
        return request.param, written(request.param, server)


def proposed(name: str) -> tuple[list[two.Proposal], list[two.Proposal], dict[str, str]]:
    if name == "library":
        return two.LIBRARY_TOOLS, two.LIBRARY_TASKS, two.LIBRARY_WRONG_RECORDS
    return two.CLINIC_TOOLS, two.CLINIC_TASKS, two.CLINIC_WRONG_RECORDS


def reasons(made: WrittenTasks, key: Callable[[Any], Any]) -> list[tuple[str, str]]:
    """What each failure is about, where `key` knows it, and its kind."""
    found = ((key(failure.item), str(failure.kind)) for failure in made.failures)
    return sorted((what, kind) for what, kind in found if what)


def in_task(item: Any) -> str:
    task = item.get("task")
    return str(task.get("question", "") if isinstance(task, dict) else task or "")


def in_tool(item: Any) -> str:
    tool = item.get("tool")
    return str(tool["name"] if isinstance(tool, dict) else tool or "")


@pytest.mark.slow
def test_every_broken_proposal_is_dropped_for_its_own_reason_and_no_other(world: tuple[str, WrittenTasks]) -> None:
    (tools, tasks, records), made = proposed(world[0]), world[1]
    wrong_tasks = [(task["question"], wrong) for wrong, task in two.broken(tasks)]
    wrong_tasks += [("Lend!", "malformed_task")] if world[0] == "library" else []
    assert reasons(made, in_task) == sorted(wrong_tasks)
    assert reasons(made, in_tool) == sorted((tool["name"], wrong) for wrong, tool in two.broken(tools))
    assert reasons(made, lambda item: item.get("key")) == sorted(records.items())
    assert {task.question for task in made.tasks} == {task["question"] for wrong, task in tasks if not wrong}
    assert {failure.stage for failure in made.failures} == {"tool_worlds"} and all(failure.reason for failure in made.failures)
    assert made.counts == {
        "worlds_proposed": 1,
        "worlds_kept": 1,
        "tools_proposed": len(tools),
        "tools_kept": len(tools) - len(two.broken(tools)),
        "records_proposed": made.counts["records_kept"] + len(records),
        "records_kept": {"library": 8, "clinic": 6}[world[0]],
        "tasks_proposed": len(tasks) + (world[0] == "library"),
        "tasks_kept": len(made.tasks),
    }
    assert 2 * len(two.broken(tasks)) > len(tasks), "half of what was proposed was broken"


@pytest.mark.slow
def test_what_is_kept_is_data_that_plays_and_is_paid_for_its_calls_alone(world: tuple[str, WrittenTasks]) -> None:
    for task in world[1].tasks:
        stored = json.loads(json.dumps(task.provenance))
        definition = read_definition(stored["world"]["definition"])
        assert definition.digest == stored["world"]["digest"] and (task.environment, stored["verifier"]) == ("tool_world", "state")
        answer = task.answers[0] if task.answers else "Done."
        assert asyncio.run(paid(task, stored["calls"], answer)) == 1.0
        assert asyncio.run(paid(task, [], "")) == 0.0
        if stored[REFERENCE]:
            assert asyncio.run(paid(task, stored["calls"][:-1], answer)) == 0.0
    definitions = {task.provenance["world"]["digest"]: task.provenance["world"]["definition"] for task in world[1].tasks}
    (only,) = definitions.values()
    assert set(only["tools"]) == {call["tool"] for task in world[1].tasks for call in task.provenance["calls"]}


async def paid(task: Task, calls: list[dict[str, Any]], answer: str) -> float | None:
    environment = create(Resources())
    await environment.reset(task, seed=0)
    for call in calls:
        await environment.step(Action(call["tool"], json.dumps(call["arguments"])))
    return (await environment.step(Action("answer", answer))).reward


@pytest.mark.long
@pytest.mark.slow
def test_a_server_with_faults_brings_no_wrong_task_and_nothing_goes_unsaid() -> None:
    """Whatever becomes of a reply: the tasks are among the right ones, and a part that is lost is a failure."""
    right, met, kept = {task["question"] for wrong, task in two.LIBRARY_TASKS if not wrong}, Counter[str](), 0
    for seed in range(6):
        with FaultyServer(answer=two.world_writer, share=0.5, seed=seed) as server:
            made = written("library", server)
        met.update(server.met)
        kept += bool(made.tasks)
        assert {task.question for task in made.tasks} <= right
        assert made.tasks or {failure.kind for failure in made.failures} & {"malformed", "cut", "no_task"}
    assert {"cut", "keys", "repetition", "chatty"} <= set(met) and kept


def test_a_reply_that_cannot_be_read_is_asked_for_twice_and_ends_the_world() -> None:
    teacher = ScriptedTeacher(lambda question: "I cannot help with that.")
    made = write_world("library", two.LIBRARY, teacher, CONFIG, seed=1)
    assert len(teacher.asked) == 2 and not made.tasks
    assert [(failure.stage, failure.kind) for failure in made.failures] == [("teacher", "malformed")] * 2


def test_tables_that_refer_to_what_is_not_there_are_no_world() -> None:
    tables = {"domain": "shop", "tables": {"sales": {"fields": {"item": {"type": "text", "refers_to": "items"}}}}}
    made = write_world("shop", "A shop.", ScriptedTeacher(lambda question: json.dumps(tables)), CONFIG, seed=1)
    assert [failure.kind for failure in made.failures] == ["unknown_table"] and made.counts == {"worlds_proposed": 1}


def test_a_world_of_which_no_task_is_left_is_dropped_whole() -> None:
    def says(question: str) -> str:
        if "Give about" in question:
            return json.dumps({"tools": [two.LIBRARY_TOOLS[0][1]]})
        if "records of each table" in question:
            return json.dumps({"records": two.LIBRARY_RECORDS})
        return json.dumps({"tasks": [two.LIBRARY_TASKS[-5][1]]} if "Give 20 tasks" in question else two.LIBRARY_TABLES)

    made = write_world("library", two.LIBRARY, ScriptedTeacher(says), CONFIG, seed=1)
    assert not made.tasks and made.counts["worlds_kept"] == 0
    assert [failure.kind for failure in made.failures][-2:] == ["answer_given", "no_task"]


def test_code_is_refused_where_it_is_not_wanted() -> None:
    def says(question: str) -> str:
        return json.dumps({"tools": [two.CLINIC_TOOLS[1][1]]} if "Give about" in question else two.CLINIC_TABLES)

    made = write_world("clinic", two.CLINIC, ScriptedTeacher(says), CONFIG.model_copy(update={"code": False}), seed=1)
    assert "malformed_tool" in {failure.kind for failure in made.failures} and made.counts["tools_kept"] == 0


def test_the_configuration_names_each_description_once() -> None:
    with pytest.raises(ValueError, match="names a file twice"):
        WrittenWorldsConfig(descriptions=(Path("a.md"), Path("a.md")))
