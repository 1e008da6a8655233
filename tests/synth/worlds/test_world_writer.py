"""Tool worlds by description: a real HTTP server writes them, partly wrong, and what holds is kept and what does not has its reason."""

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
from synth.worlds.writing_config import PARTS, WrittenWorldsConfig
from tests.synth.teachers.faulty_server import FaultyServer
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.worlds import two_domains as two
from warehouse.records import Failure, Task

TEACHER = TeacherConfig(kind="openai", model="m", timeout_seconds=2.0, first_pause_seconds=0.01)


def written(name: str, server: MisbehavingServer) -> WrittenTasks:
    description, tools = {"library": (two.LIBRARY, two.LIBRARY_TOOLS), "clinic": (two.CLINIC, two.CLINIC_TOOLS)}[name]
    config = WrittenWorldsConfig.model_validate({"descriptions": ["x"], "tasks": 20, "records": 6, "tools": len(tools)})
    with open_teacher(TEACHER.model_copy(update={"base_url": server.url})) as teacher:
        return write_world(name, description, teacher, config, seed=1)


@pytest.fixture(scope="module", params=["library", "clinic"])
def world(request: pytest.FixtureRequest) -> tuple[str, WrittenTasks]:
    with MisbehavingServer(answer=two.world_writer) as server:
        return request.param, written(request.param, server)


def last(failures: list[Failure], key: str) -> list[tuple[str, str]]:
    """What was dropped of a part, without the tries that were repaired afterwards or tried again."""
    found = [failure for failure in failures if key in failure.item and "try" not in failure.item]
    return [(str(failure.item[key]), str(failure.kind)) for failure in found]


@pytest.mark.slow
def test_a_fault_costs_its_item_or_a_repair_and_never_the_world(world: tuple[str, WrittenTasks]) -> None:
    is_library, made = world[0] == "library", world[1]
    tools, wrong_rows = (two.LIBRARY_TOOLS, two.LIBRARY_WRONG_ROWS) if is_library else (two.CLINIC_TOOLS, two.CLINIC_WRONG_ROWS)
    assert dict(last(made.failures, "tool")) == two.broken_tools(tools)
    assert [kind for _, kind in last(made.failures, "rows")] == ["wrong_rows"] * wrong_rows
    assert {kind for _, kind in last(made.failures, "task")} <= {"not_said"}
    tables = [failure for failure in made.failures if failure.kind == "wrong_tables" and "try" in failure.item]
    tried = (len(tables), made.counts["tables_first_try"], made.counts["tables_repaired"])
    assert tried == ((1, 0, 1) if is_library else (0, 1, 0))
    assert made.counts["tools_repaired"] == is_library and made.counts["tasks_repaired"] > 0
    assert made.counts["tools_kept"] == len(tools) - len(two.broken_tools(tools))
    for part in PARTS:
        assert 0 < made.counts[f"{part}_kept"] <= made.counts[f"{part}_proposed"] and made.counts[f"{part}_tokens"] > 0
        assert made.counts[f"{part}_first_try"] + made.counts[f"{part}_repaired"] <= made.counts[f"{part}_asked"]
    assert made.counts["tasks_first_try"] + made.counts["tasks_repaired"] == made.counts["tasks_kept"] == len(made.tasks) >= 10


@pytest.mark.slow
def test_what_is_kept_is_data_that_plays_and_is_paid_for_all_of_its_calls(world: tuple[str, WrittenTasks]) -> None:
    for task in world[1].tasks:
        stored = json.loads(json.dumps(task.provenance))
        definition = read_definition(stored["world"]["definition"])
        assert (definition.domain, definition.digest) == (world[0], stored["world"]["digest"])
        assert (task.environment, stored["verifier"]) == ("tool_world", "state") and bool(stored[REFERENCE]) is not bool(task.answers)
        answer = task.answers[0] if task.answers else "Done."
        assert asyncio.run(paid(task, stored["calls"], answer)) == 1.0
        assert asyncio.run(paid(task, [], "")) == 0.0
        assert all(answer not in task.question for answer in task.answers)
        if stored[REFERENCE]:
            assert asyncio.run(paid(task, stored["calls"][:-1], answer)) == 0.0
    definitions = {task.provenance["world"]["digest"]: task.provenance["world"]["definition"] for task in world[1].tasks}
    (only,) = definitions.values()
    assert set(only["tools"]) == {call["tool"] for task in world[1].tasks for call in task.provenance["calls"]}
    assert {len(task.provenance["calls"]) for task in world[1].tasks} >= {1, 2}, "keys that a person does not know are found first"
    if world[0] == "library":
        types = {name: each["type"] for name, each in only["tools"]["lend"]["parameters"].items()}
        assert types == {"book_id": "integer", "member_id": "integer", "due": "string"}, "the types of columns"


async def paid(task: Task, calls: list[dict[str, Any]], answer: str) -> float | None:
    environment = create(Resources())
    await environment.reset(task, seed=0)
    for call in calls:
        await environment.step(Action(call["tool"], json.dumps(call["arguments"])))
    return (await environment.step(Action("answer", answer))).reward


@pytest.mark.long
@pytest.mark.slow
def test_a_server_with_faults_brings_no_wrong_task_and_nothing_is_lost_without_a_failure() -> None:
    met, kept = Counter[str](), 0
    for seed in range(6):
        with FaultyServer(answer=two.world_writer, share=0.5, seed=seed) as server:
            made = written("library", server)
        met.update(server.met)
        kept += bool(made.tasks)
        for task in made.tasks:
            assert asyncio.run(paid(task, task.provenance["calls"], (*task.answers, "Done.")[0])) == 1.0
        assert made.tasks or {failure.kind for failure in made.failures} & {"malformed", "cut", "no_task", "wrong_tables", "no_sql"}
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
