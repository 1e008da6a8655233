"""Written worlds: a definition is data within bounds, steps are carried out whole or not at all, code runs in the sandbox alone."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from eval.graders.state import REFERENCE, STATE
from eval.sandbox.sandbox import isolation
from rl.envs.base import EnvironmentFault, Resources, ToolOutcome
from rl.envs.tool_world.definition import MOST_TEXTS, WorldDefinition, read_definition
from rl.envs.tool_world.environment import ToolWorldEnvironment, create
from rl.envs.tool_world.limits import CodeLimits
from rl.envs.tool_world.written import WrittenWorld, sandbox_of
from rl.renderers.base import Action
from rl.tools import ToolError, ToolFault, ToolMiss
from warehouse.records import Task

needs_sandbox = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")
TEXT, INTEGER = {"type": "text"}, {"type": "integer"}
GET = {"op": "get", "table": "books", "key": "{book}", "name": "found"}
LIMITS = CodeLimits(wall_seconds=60, cpu_seconds=1)


def tool(parameters: dict[str, Any], steps: list[Any] | None = None, **others: Any) -> dict[str, Any]:
    return {"description": "A tool.", "parameters": parameters, **({"steps": steps} if steps else {}), **others}


WORLD: dict[str, Any] = {
    "domain": "library",
    "tables": {
        "books": {"fields": {"title": TEXT, "copies": INTEGER, "shelf": {"type": "text", "one_of": ["north", "south"]}}},
        "loans": {"fields": {"book": {"type": "text", "refers_to": "books"}, "member": TEXT}},
    },
    "tools": {
        "look": tool({"book": TEXT}, [GET], returns={"title": "{found.title}", "left": "{found.copies}", "said": "{book}: {found.title}"}),
        "on": tool({"shelf": TEXT}, [{"op": "find", "table": "books", "where": {"shelf": "{shelf}"}, "name": "rows"}]),
        "lend": tool(
            {"book": TEXT, "member": TEXT},
            [
                GET,
                {"op": "update", "table": "books", "key": "{book}", "set": {"copies": {"minus": ["{found.copies}", 1]}}},
                {"op": "require", "left": "{found.copies}", "comparison": ">", "right": 0, "otherwise": "{found.title} is out"},
                {"op": "insert", "table": "loans", "key": "{member}@{book}", "record": {"book": "{book}", "member": "{member}"}},
            ],
            returns="lent",
        ),
        "drop": tool({"book": TEXT}, [{"op": "delete", "table": "books", "key": "{book}"}]),
        "move": tool({"book": TEXT, "shelf": TEXT}, [{"op": "update", "table": "books", "key": "{book}", "set": {"shelf": "{shelf}"}}]),
        "add": tool({"book": TEXT, "more": INTEGER}, [GET, {"op": "update", "table": "books", "key": "{book}",
                    "set": {"copies": {"plus": ["{found.copies}", "{more}"]}}}]),
        "name": tool({"book": TEXT, "title": TEXT}, [{"op": "update", "table": "books", "key": "{book}", "set": {"copies": "{title}"}}]),
    },
    "records": {
        "books": {"B1": {"title": "Dune", "copies": 1, "shelf": "north"}, "B2": {"title": "Emma", "copies": 0, "shelf": "north"}},
        "loans": {"M1@B1": {"book": "B1", "member": "M1"}},
    },
}  # fmt: skip


def with_tool(name: str, **written: Any) -> dict[str, Any]:
    return {**WORLD, "tools": {**WORLD["tools"], name: written}}


def opened(data: dict[str, Any] = WORLD) -> WrittenWorld:
    return WrittenWorld(read_definition(data), LIMITS)


async def called(world: WrittenWorld, name: str, **arguments: Any) -> str:
    return (await world.tools[name].call(arguments)).text  # type: ignore[attr-defined]


async def test_steps_read_write_and_work_things_out() -> None:
    world = opened()
    assert json.loads(await called(world, "look", book="B1")) == {"title": "Dune", "left": 1, "said": "B1: Dune"}
    assert [row["key"] for row in json.loads(await called(world, "on", shelf="north"))] == ["B1", "B2"]
    assert await called(world, "lend", book="B1", member="M2") == "lent"
    assert world.state["loans"]["M2@B1"] == {"book": "B1", "member": "M2"} and world.state["books"]["B1"]["copies"] == 0
    await called(world, "add", book="B2", more=4.0)
    assert world.state["books"]["B2"]["copies"] == 4 and type(world.state["books"]["B2"]["copies"]) is int


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("lend", {"book": "B2", "member": "M2"}, "Emma is out"),
        ("lend", {"book": "B9", "member": "M2"}, "there is no 'B9' in books"),
        ("lend", {"book": "B1", "member": "M1"}, "there is a 'M1@B1' in loans already"),
        ("lend", {"book": "B1", "member": "a/b"}, "without a slash"),
        ("lend", {"book": "B1"}, "'member' is a required property"),
        ("lend", {"book": "B1", "member": "M2", "day": 3}, "Additional properties"),
        ("lend", {"book": "B1", "member": "M" * 501}, "is too long"),
        ("drop", {"book": "B1"}, "refers to 'B1', which is not in books"),
        ("move", {"book": "B1", "shelf": "cellar"}, "one of north, south"),
        ("name", {"book": "B1", "title": "x"}, "copies must be integer"),
        ("add", {"book": "B1", "more": True}, "is not of type 'integer'"),
        ("add", {"book": "B1", "more": 10**13}, "maximum"),
    ],
)
async def test_a_call_that_is_refused_changes_nothing(name: str, arguments: dict[str, Any], why: str) -> None:
    world = opened()
    before = deepcopy(world.state)
    with pytest.raises(ToolError, match=why):
        await called(world, name, **arguments)
    assert world.state == before


async def test_a_search_that_finds_nothing_is_a_miss() -> None:
    with pytest.raises(ToolMiss, match="No books with shelf 'south'"):
        await called(opened(), "on", shelf="south")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tables": {}}, "tables"),
        ({"domain": "../etc"}, "domain"),
        ({"module": "os:system"}, "Extra inputs"),
        ({"tools": {"os.system": tool({}, [GET])}}, "tools"),
        ({"tools": {"look": tool({}, [GET])}}, "no argument or earlier result 'book'"),
        ({"tools": {"look": tool({"book": TEXT}, [GET], returns="{found.__class__}")}}, ""),
        ({"tools": {"look": tool({"book": TEXT}, [{**GET, "table": "loan"}])}}, "there is no table 'loan'"),
        ({"tools": {"look": tool({"book": TEXT}, [GET] * 13)}}, "at most 12"),
        ({"tools": {"look": tool({"book": TEXT}, [GET], code="x")}}, "steps or code, and not both"),
        ({"tools": {"look": tool({"book": TEXT}, [GET], returns=["{book}"] * (MOST_TEXTS + 1))}}, f"at most {MOST_TEXTS} texts"),
        ({"tools": {"look": tool({"book": TEXT}, [GET], returns="x" * 501)}}, "of 500 characters"),
        ({"tools": {"look": tool({"book": TEXT}, [GET], returns=[[[[[[[["{book}"]]]]]]]])}}, "at most 6 lists"),
        ({"records": {"books": {"B1": {"title": "Dune", "copies": 1, "shelf": "cellar"}}}}, "one of north, south"),
        ({"records": {"books": {"B1": {"title": "Dune", "copies": True, "shelf": "north"}}}}, "copies must be integer"),
        ({"records": {"loans": {"x": {"book": "B1", "member": "M1"}}}}, "refers to 'B1'"),
        ({"records": {"books": {str(n): {"title": "x", "copies": 1, "shelf": "north"} for n in range(501)}}}, "more than 500"),
        ({"records": {"books": {str(n): {"title": "x" * 500, "copies": 1, "shelf": "north"} for n in range(900)}}}, "at most 400,000"),
    ],
)  # fmt: skip
def test_a_definition_that_is_none_is_refused_before_anything_is_done_with_it(changed: dict[str, Any], why: str) -> None:
    data = {**WORLD, **changed}
    if not why:  # what looks like an attribute is no field of a record and stays the text that it is
        assert WrittenWorld(read_definition(data), LIMITS).tools
        return
    with pytest.raises(ValueError, match=why):
        read_definition(data)


def test_a_list_of_records_stands_within_no_text() -> None:
    step = {"op": "find", "table": "books", "name": "rows"}
    with pytest.raises(ValueError, match="cannot stand within a text"):
        read_definition(with_tool("all", **tool({}, [step], returns="they are {rows}")))
    assert read_definition(with_tool("all", **tool({}, [step], returns={"rows": "{rows}"})))


def test_a_definition_that_nests_without_end_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="no JSON"):
        read_definition(with_tool("deep", **tool({"book": TEXT}, [GET], returns=deep)))


@pytest.mark.parametrize(
    ("value", "refused"), [("{found.title}" * 30, "a text has at most 500 characters"), ("{rows}", "a field holds one value")]
)
async def test_what_steps_put_into_records_does_not_grow_from_step_to_step(value: str, refused: str) -> None:
    """Twelve steps that each take out what the one before put in would otherwise fill any memory."""
    rows = {"op": "find", "table": "books", "where": {}, "name": "rows"}
    grow = [rows, GET, {"op": "update", "table": "books", "key": "{book}", "set": {"title": value}}] * 4
    world = opened(with_tool("grow", **tool({"book": TEXT}, grow)))
    before = deepcopy(world.state)
    with pytest.raises(ToolError, match=refused):
        await world.call("grow", {"book": "B1"})
    assert world.state == before


def test_what_is_read_back_is_the_same_world() -> None:
    read = read_definition(WORLD)
    again = read_definition(json.loads(json.dumps(read.as_data)))
    assert (again, again.digest) == (read, read.digest)
    other = read_definition({**WORLD, "records": {**WORLD["records"], "loans": {}}})
    assert other.digest != read.digest


def coded(code: str) -> WrittenWorld:
    return opened(with_tool("do", **tool({"book": TEXT}, code=code)))


@needs_sandbox
@pytest.mark.slow
async def test_code_gets_the_state_and_gives_it_back() -> None:
    world = coded("def do(state, book):\n    print('noise')\n    state['books'][book]['copies'] += 1\n    return {'n': 3}\n")
    assert (await called(world, "do", book="B1"), world.state["books"]["B1"]["copies"]) == ('{"n": 3}', 2)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "error", "why"),
    [
        ("raise Refused('not on Sundays')", ToolError, "not on Sundays"),
        ("raise Nothing('none there')", ToolMiss, "none there"),
        ("state['books'][book]['copies'] = 'many'", ToolError, "copies must be integer"),
        ("del state['books'][book]", ToolError, "refers to 'B1'"),
        ("state['films'] = {}", ToolError, "there is no table 'films'"),
        ("state.clear(); state['books'] = 3", ToolFault, "no state of tables"),
        ("return 1 / 0", ToolFault, "ZeroDivisionError"),
        ("return float('nan')", ToolFault, "ValueError"),
        ("return object()", ToolFault, "TypeError"),
        ("while True: pass", ToolFault, "its code failed"),
        ("return 'x' * 10**8", ToolFault, "its code failed"),
        ("import os; os._exit(0)", ToolFault, "not what a tool returns"),
        ("import os; os.write(1, b'[1]'); os._exit(0)", ToolFault, "not what a tool returns"),
        ('import os; os.write(1, b\'{"returned": 1, "state": {"books": {"../x": 1}}}\'); os._exit(0)', ToolError, "without a slash"),
        ("return open('/etc/passwd').read()", ToolFault, "FileNotFoundError"),
        ("import socket; return socket.create_connection(('127.0.0.1', 80))", ToolFault, "its code failed"),
        ("import pydantic", ToolFault, "ModuleNotFoundError"),
    ],
)
async def test_code_that_does_anything_else_changes_nothing(body: str, error: type[Exception], why: str) -> None:
    world = coded(f"def do(state, book):\n    {body}\n")
    before = deepcopy(world.state)
    with pytest.raises(error, match=why):
        await called(world, "do", book="B1")
    assert world.state == before


def test_code_is_isolated_whatever_is_asked_for() -> None:
    assert sandbox_of(LIMITS).config.isolation == "namespaces"
    with pytest.raises(ValueError, match="isolation"):
        CodeLimits.model_validate({"isolation": "none"})


@needs_sandbox
@pytest.mark.slow
async def test_code_of_a_task_leaves_no_trace_in_this_process(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code = f"open({str(trace)!r}, 'w')\nimport sys, builtins\nsys.modules['planted'] = builtins\ndef do(state, book):\n    return 1\n"
    environment = await begun(task_of(with_tool("do", **tool({"book": TEXT}, code=code))))
    with pytest.raises(EnvironmentFault, match="the tool 'do' failed"):
        await environment.step(Action("do", '{"book": "B1"}'))
    assert not trace.exists() and "planted" not in sys.modules


def task_of(data: dict[str, Any], **changes: Any) -> Task:
    world = {"domain": "library", "definition": data, "digest": WorldDefinition.model_validate(data).digest}
    return Task("t", "tool_world", "Lend B1 to M2.", (), provenance={"world": world, REFERENCE: {"loans/M2@B1/book": "B1"}, **changes})


async def begun(task: Task) -> ToolWorldEnvironment:
    environment = create(Resources())
    await environment.reset(task, seed=0)
    return environment


async def test_a_task_that_holds_its_world_is_played_in_it() -> None:
    environment = await begun(task_of(WORLD))
    assert {schema["function"]["name"] for schema in environment.schemas} == set(WORLD["tools"])
    step = await environment.step(Action("lend", '{"book": "B2", "member": "M2"}'))
    assert (step.tool_outcome, step.observation, step.info["figures"][STATE]) == (ToolOutcome.ERROR, "Error: Emma is out", {})
    await environment.step(Action("lend", '{"book": "B1", "member": "M2"}'))
    last = await environment.step(Action("answer", "Done."))
    assert (last.reward, last.info["figures"]["extra_writes"]) == (1.0, 2)
    assert (await (await begun(task_of(WORLD))).step(Action("answer", "Done."))).reward == 0.0


@pytest.mark.parametrize(
    ("world", "why"),
    [
        ({"definition": WORLD, "digest": "another"}, "no longer what it was made for"),
        ({"definition": {**WORLD, "tables": {}}, "digest": "x"}, "holds no tool world: tables"),
        ({"definition": "rl.envs.tool_world.agenda:Agenda", "digest": "x"}, "holds no tool world"),
        ({"definition": None, "digest": "x"}, "holds no tool world"),
    ],
)
async def test_a_task_whose_world_is_none_is_a_fault(world: dict[str, Any], why: str) -> None:
    with pytest.raises(EnvironmentFault, match=why):
        await begun(task_of(WORLD, world=world))
