"""Tool worlds by description: a real HTTP server proposes them, half broken, and what holds is kept and what does not has its reason."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from eval.graders.state import REFERENCE
from rl.envs.base import Resources
from rl.envs.tool_world.definition import read_definition
from rl.envs.tool_world.environment import create
from rl.renderers.base import Action
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.worlds.world_proposals import sql_in, statements_of
from synth.worlds.world_writer import WrittenTasks, write_world
from synth.worlds.writing_config import WrittenWorldsConfig
from tests.synth.teachers.faulty_server import FaultyServer
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.worlds import two_domains as two
from warehouse.records import Task

CONFIG = WrittenWorldsConfig.model_validate({"descriptions": ["library.md"], "tasks": 20, "tasks_per_request": 20})
TEACHER = TeacherConfig(kind="openai", model="m", timeout_seconds=2.0, first_pause_seconds=0.01)


def written(name: str, server: MisbehavingServer) -> WrittenTasks:
    description = {"library": two.LIBRARY, "clinic": two.CLINIC}[name]
    with open_teacher(TEACHER.model_copy(update={"base_url": server.url})) as teacher:
        return write_world(name, description, teacher, CONFIG, seed=1)


@pytest.fixture(scope="module", params=["library", "clinic"])
def world(request: pytest.FixtureRequest) -> tuple[str, WrittenTasks]:
    with MisbehavingServer(answer=two.world_writer) as server:
        return request.param, written(request.param, server)


def in_task(item: Any) -> str:
    task = item.get("task")
    return str(task.get("question", "") if isinstance(task, dict) else task or "")


def in_tool(item: Any) -> str:
    tool = item.get("tool")
    return str(tool["name"] if isinstance(tool, dict) else tool or "")


@pytest.mark.slow
def test_every_broken_proposal_is_dropped_for_its_own_reason_and_no_other(world: tuple[str, WrittenTasks]) -> None:
    is_library, made = world[0] == "library", world[1]
    tools, tasks = (two.LIBRARY_TOOLS, two.LIBRARY_TASKS) if is_library else (two.CLINIC_TOOLS, two.CLINIC_TASKS)
    wrong_rows = two.LIBRARY_WRONG_ROWS if is_library else two.CLINIC_WRONG_ROWS
    kinds = {what: [(key(each.item), str(each.kind)) for each in made.failures if key(each.item)] for what, key in KEYS.items()}
    wrong_tasks = [(task["question"], wrong) for wrong, task in two.broken(tasks)] + [("Lend!", "malformed_task")] * is_library
    assert sorted(kinds["task"]) == sorted(wrong_tasks)
    assert dict(kinds["tool"]) == two.broken_tools(tools) and len(kinds["tool"]) == len(two.broken_tools(tools))
    assert [kind for _, kind in kinds["rows"]] == ["wrong_rows"] * wrong_rows
    assert {task.question for task in made.tasks} == {task["question"] for wrong, task in tasks if not wrong}
    assert {failure.stage for failure in made.failures} == {"tool_worlds"} and all(failure.reason for failure in made.failures)
    assert made.counts == {
        "worlds_proposed": 1,
        "worlds_kept": 1,
        "tools_proposed": len(tools),
        "tools_kept": len(tools) - len(two.broken_tools(tools)),
        "records_proposed": made.counts["records_kept"] + wrong_rows,
        "records_kept": 8 if is_library else 6,
        "tasks_proposed": len(tasks) + is_library,
        "tasks_kept": len(made.tasks),
    }


KEYS = {"task": in_task, "tool": in_tool, "rows": lambda item: item.get("rows")}


@pytest.mark.slow
def test_what_is_kept_is_data_that_plays_and_is_paid_for_its_calls_alone(world: tuple[str, WrittenTasks]) -> None:
    for task in world[1].tasks:
        stored = json.loads(json.dumps(task.provenance))
        definition = read_definition(stored["world"]["definition"])
        assert (definition.domain, definition.digest) == (world[0], stored["world"]["digest"])
        assert (task.environment, stored["verifier"]) == ("tool_world", "state")
        answer = task.answers[0] if task.answers else "Done."
        assert asyncio.run(paid(task, stored["calls"], answer)) == 1.0
        assert asyncio.run(paid(task, [], "")) == 0.0
        if stored[REFERENCE]:
            assert asyncio.run(paid(task, stored["calls"][:-1], answer)) == 0.0
    definitions = {task.provenance["world"]["digest"]: task.provenance["world"]["definition"] for task in world[1].tasks}
    (only,) = definitions.values()
    assert set(only["tools"]) == {call["tool"] for task in world[1].tasks for call in task.provenance["calls"]}
    if world[0] == "library":
        types = {name: each["type"] for name, each in only["tools"]["renew"]["parameters"].items()}
        assert types == {"book_id": "string", "due": "integer", "member_id": "string"}, "types of columns, where none are declared"


async def paid(task: Task, calls: list[dict[str, Any]], answer: str) -> float | None:
    environment = create(Resources())
    await environment.reset(task, seed=0)
    for call in calls:
        await environment.step(Action(call["tool"], json.dumps(call["arguments"])))
    return (await environment.step(Action("answer", answer))).reward


@pytest.mark.long
@pytest.mark.slow
def test_a_server_with_faults_brings_no_wrong_task_and_nothing_is_lost_without_a_failure() -> None:
    right, met, kept = {task["question"] for wrong, task in two.LIBRARY_TASKS if not wrong}, Counter[str](), 0
    for seed in range(6):
        with FaultyServer(answer=two.world_writer, share=0.5, seed=seed) as server:
            made = written("library", server)
        met.update(server.met)
        kept += bool(made.tasks)
        assert {task.question for task in made.tasks} <= right
        assert made.tasks or {failure.kind for failure in made.failures} & {"malformed", "cut", "no_task", "wrong_tables"}
    assert {"cut", "keys", "repetition", "chatty"} <= set(met) and kept


@pytest.mark.parametrize(
    ("reply", "statements"),
    [
        ("```sql\nCREATE TABLE a (b);\n```\n```\nINSERT INTO a VALUES (';');\n```", ["CREATE TABLE a (b);", "INSERT INTO a VALUES (';');"]),
        ("<think>CREATE TABLE x (y);</think>/* two */ -- of\nCREATE TABLE a (b TEXT)", ["CREATE TABLE a (b TEXT)"]),
        ("```sqlite\nINSERT INTO a VALUES (1);\nDROP TABLE a;", ["INSERT INTO a VALUES (1);"]),
        ("I create a table.", []),
    ],
)  # fmt: skip
def test_sql_is_found_in_what_models_write(reply: str, statements: list[str]) -> None:
    assert statements_of(sql_in(reply), "CREATE TABLE", "INSERT") == statements
