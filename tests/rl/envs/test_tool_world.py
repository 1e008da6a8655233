"""Tool worlds: hostile SQL is refused, episodes are graded by state, and simulated users are checked."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from eval.graders.state import EXTRA_WRITES, REFERENCE, STATE, StateVerifier, compare
from rl.envs.base import EnvironmentFault, FaultKind, Resources, Step, ToolOutcome
from rl.envs.tool_world.conversation import RESPOND, STOP, Said, UserOptions, slip_in
from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import WorldDefinition, read_definition, written_tools
from rl.envs.tool_world.environment import ToolWorldEnvironment, ToolWorldOptions, create, find_world
from rl.renderers.base import Action
from rl.tools import ToolError, ToolFault, ToolMiss
from synth.worlds.tool_tasks import generate_tasks
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory

TABLES = """
CREATE TABLE books (book TEXT PRIMARY KEY, title TEXT NOT NULL, copies INTEGER NOT NULL CHECK (copies >= 0), shelf TEXT);
CREATE TABLE loans (id INTEGER PRIMARY KEY, book TEXT NOT NULL REFERENCES books, member TEXT NOT NULL, due TEXT DEFAULT CURRENT_DATE);
CREATE TABLE notes (text TEXT, loan INTEGER REFERENCES loans);
"""
TOOLS = """
-- tool: look
-- Show a book.
-- :book text its number
SELECT title, copies FROM books WHERE book = :book;

-- tool: lend
-- Lend a book.
-- :book text its number
-- :member (TEXT): the member's number
INSERT INTO loans (book, member) VALUES (:book, :member);
UPDATE books SET copies = copies - 1 WHERE book = :book AND copies > 0; -- else: no copy is left
SELECT 1 WHERE :member LIKE 'M%'; -- else: members begin with M; others do not

-- tool: take_back
-- Take a book back.
-- :loan integer the number of the loan
DELETE FROM loans WHERE id = :loan RETURNING book, member;

-- tool: note
-- Note something about the newest loan of a member.
-- :member text
-- :text text
INSERT INTO notes (text, loan) SELECT :text, max(id) FROM loans WHERE member = :member HAVING max(id) IS NOT NULL;

-- tool: shelve
-- Put a book on a shelf.
-- :book text
-- :shelf text
UPDATE books SET shelf = :shelf WHERE book = :book;

-- tool: all_of
-- Show these books.
-- :books array their numbers
SELECT title FROM books WHERE book IN (SELECT value FROM json_each(:books)) ORDER BY title;
"""
WORLD: dict[str, Any] = {
    "domain": "library",
    "tables": TABLES,
    "tools": dict(written_tools(TOOLS)),
    "rows": {
        "books": [
            {"book": "B1", "title": "Dune", "copies": 1, "shelf": None},
            {"book": "B2", "title": "Emma", "copies": 0, "shelf": "north"},
            {"book": "B3", "title": "Ubik; a novel", "copies": 2, "shelf": "north"},
        ],
        "loans": [{"id": 1, "book": "B2", "member": "M1", "due": "2026-01-09"}],
    },
}


def opened(**changed: Any) -> ToolDatabase:
    return ToolDatabase(read_definition({**WORLD, **changed}))


def with_tool(sql: str, parameters: dict[str, Any] | None = None) -> ToolDatabase:
    return opened(tools={**WORLD["tools"], "do": {"description": "Do.", "parameters": parameters or {}, "statements": [sql]}})


def task_of(data: dict[str, Any] = WORLD, **changes: Any) -> Task:
    definition = WorldDefinition.model_validate(data)
    world = {"domain": "library", "definition": definition.as_data, "digest": definition.digest}
    played = ToolDatabase(definition)
    played.call("lend", {"book": "B1", "member": "M2"})
    return Task("t", "tool_world", "Lend B1 to M2.", (), provenance={"world": world, REFERENCE: played.changes(), **changes})


def test_calls_read_and_write() -> None:
    world = opened()
    assert world.call("look", {"book": "B1"}) == [{"title": "Dune", "copies": 1}]
    assert world.call("all_of", {"books": ["B1", "B3"]}) == [{"title": "Dune"}, {"title": "Ubik; a novel"}]
    assert world.call("lend", {"book": "B1", "member": "M2"}) == "done"
    assert world.call("take_back", {"loan": 1.0}) == [{"book": "B2", "member": "M1"}]
    world.call("shelve", {"book": "B2", "shelf": "south"})
    changes = world.changes()
    assert {path: value for path, value in changes.items() if "loans/" not in path} == {"books/B1/copies": 0, "books/B2/shelf": "south"}
    assert changes["loans/1/book"] is None and sum(path.startswith("loans/new ") for path in changes) == 3
    with pytest.raises(ToolMiss):
        world.call("look", {"book": "B9"})


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("lend", {"book": "B2", "member": "M2"}, "no copy is left"),
        ("lend", {"book": "B9", "member": "M2"}, "FOREIGN KEY"),
        ("lend", {"book": "B1", "member": "x"}, "others do not"),
        ("lend", {"book": "B1"}, "required property"),
        ("lend", {"book": "B1", "member": "M2", "day": 3}, "Additional properties"),
        ("lend", {"book": "B1", "member": "M" * 501}, "500 characters"),
        ("take_back", {"loan": 7}, "no row was changed"),
        ("take_back", {"loan": True}, "integer"),
        ("take_back", {"loan": 10**13}, "a number is at most"),
        ("all_of", {"books": ["B1"] * 200}, "500 characters"),
    ],
)
async def test_a_call_that_is_refused_changes_nothing(name: str, arguments: dict[str, Any], why: str) -> None:
    world = opened()
    with pytest.raises(ToolError, match=why):
        await world.tools[name].call(arguments)  # type: ignore[attr-defined]
    assert world.changes() == {} and world.rows() == opened().rows()


def test_the_final_state_counts_and_not_the_path() -> None:
    """New rows are compared by content: neither order nor mistakes before them, which count generated keys up, matter."""
    one, other, swapped = opened(), opened(), opened()
    other.call("lend", {"book": "B1", "member": "M9"})
    other.call("take_back", {"loan": 2})
    other.call("shelve", {"book": "B1", "shelf": "north"})
    for world, members, notes in ((one, "AB", "AB"), (other, "BA", "AB"), (swapped, "AB", "BA")):
        for member in members:
            world.call("lend", {"book": "B3", "member": f"M{member}"})
        for member, note in zip("AB", notes, strict=True):
            world.call("note", {"member": f"M{member}", "text": f"for {note}"})
    assert {row["id"] for row in one.rows()["loans"]} != {row["id"] for row in other.rows()["loans"]}
    verdict = compare(one.changes(), other.changes())
    assert verdict.reached and verdict.extra == ("books/B1/copies", "books/B1/shelf")
    other.call("note", {"member": "MA", "text": "for B"})
    other.call("note", {"member": "MA", "text": "for B"})
    again = compare(one.changes(), other.changes())
    assert again.reached and len(again.extra) == 2 + 4, "equal rows are counted"
    assert not compare(other.changes(), one.changes()).reached
    assert not compare(one.changes(), swapped.changes()).reached


HOSTILE_TABLES = [
    "ATTACH 'stolen.db' AS other;",
    "PRAGMA writable_schema = ON;",
    "CREATE TABLE t (a TEXT); INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 0, '');",
    "CREATE TEMP TABLE t (a TEXT);",
    "CREATE VIRTUAL TABLE t USING fts5(a);",
    "CREATE TABLE t (a TEXT); CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO t VALUES ('x'); END;",
    "CREATE TABLE t AS SELECT zeroblob(1000000000) AS a;",
    "CREATE TABLE t (a TEXT DEFAULT (load_extension('x')), CHECK (load_extension('x')));",
    "CREATE TABLE t (a TEXT); VACUUM INTO 'stolen.db';",
    "".join(f"CREATE TABLE t{n} (a TEXT);" for n in range(13)),
    "CREATE TABLE t (a TEXT); DROP TABLE t;",
]


@pytest.mark.parametrize("tables", HOSTILE_TABLES)
def test_hostile_tables_are_refused(tables: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="tables"):
        opened(tables=tables, rows={}, tools={})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'stolen.db' AS other",
        "PRAGMA foreign_keys = OFF",
        "SELECT * FROM pragma_table_list",
        "SELECT load_extension('x')",
        "SELECT random()",
        "SELECT zeroblob(1000000000)",
        "CREATE TABLE more (a TEXT)",
        "CREATE TEMP TRIGGER r AFTER INSERT ON loans BEGIN DELETE FROM books; END",
        "DROP TABLE books",
        "VACUUM INTO 'stolen.db'",
        "COMMIT",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n",
        "SELECT 1; DELETE FROM books",
        "SELECT :missing",
        "SELECT title FROM films",
        "SELECT 1 /* \x00 */",
    ],
)
def test_hostile_statements_are_refused_before_anything_is_done(sql: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="tools"):
        with_tool(sql)
    assert not list(tmp_path.iterdir())


MANY = ", ".join(f"books b{number}" for number in range(14))


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (f"SELECT count(*) FROM {MANY}", ToolFault),
        ("SELECT replace(replace(printf('%99s', ' '), ' ', printf('%99s', ' ')), ' ', 'yyyyyyyyyy')", ToolError),
        ("UPDATE books SET title = printf('%9000s', 'x')", ToolError),
        (f"INSERT INTO notes SELECT printf('%7000s', b0.title), NULL FROM {MANY}", ToolError),
        ("SELECT sum(9223372036854775807) FROM books", ToolFault),
    ],
)  # fmt: skip
def test_query_bombs_are_bounded(sql: str, error: type[Exception]) -> None:
    world, began = with_tool(sql), time.perf_counter()
    with pytest.raises(error):
        world.call("do", {})
    assert time.perf_counter() - began < 10 and world.changes() == {}
    assert world.call("look", {"book": "B1"}), "the world goes on"


@pytest.mark.parametrize(
    "changed",
    [
        {"domain": "../etc"},
        {"tools": {"os.system": {"description": "x", "statements": ["SELECT 1"]}}},
        {"tools": {"look": {"description": "x", "statements": ["SELECT 1"] * 13}}},
        {"tools": {"look": {"description": "x", "statements": ["SELECT " + "1" * 4_000]}}},
        {"rows": {"books": [{"book": "B1", "title": "Dune", "copies": -1}]}},
        {"rows": {"loans": [{"book": "B9", "member": "M1"}]}},
        {"rows": {"books": [{"book": f"B{n}", "title": "x" * 400, "copies": 1} for n in range(1_000)]}},
        {"rows": {"notes": [{"text": "x" * 9_000}]}},
        {"rows": {"books": [{"book": "\ud800", "title": "x", "copies": 1}]}},
    ],
)
def test_an_invalid_definition_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        opened(**changed)


def test_a_definition_of_endless_depth_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="JSON"):
        read_definition({**WORLD, "rows": deep})


async def begun(task: Task) -> ToolWorldEnvironment:
    environment = create(Resources())
    await environment.reset(task, seed=0)
    return environment


def action(call: dict[str, Any]) -> Action:
    return Action(call["tool"], json.dumps(call["arguments"]))


async def played(task: Task, calls: list[dict[str, Any]], answer: str = "Done.") -> list[Step]:
    environment = await begun(task)
    return [*[await environment.step(action(call)) for call in calls], await environment.step(Action("answer", answer))]


async def test_a_task_is_played_in_its_own_world() -> None:
    environment = await begun(task_of())
    assert {schema["function"]["name"] for schema in environment.schemas} == set(WORLD["tools"])
    step = await environment.step(Action("lend", '{"book": "B2", "member": "M2"}'))
    assert (step.tool_outcome, step.observation, step.info["figures"][STATE]) == (ToolOutcome.ERROR, "Error: no copy is left", {})
    await environment.step(Action("lend", '{"book": "B1", "member": "M2"}'))
    await environment.step(Action("shelve", '{"book": "B1", "shelf": "south"}'))
    other = environment.copy()
    last = await environment.step(Action("answer", "Done."))
    assert (last.reward, last.info["figures"][EXTRA_WRITES]) == (1.0, 1)
    await environment.close()
    await other.step(Action("take_back", '{"loan": 2}'))
    assert (await other.step(Action("lend", '{"book": "B9", "member": "M2"}'))).tool_outcome is ToolOutcome.ERROR, (
        "its keys are checked too"
    )
    assert (await other.step(Action("answer", "Done."))).reward == 0.0
    assert [step.reward for step in await played(task_of(), [])] == [0.0]


@pytest.mark.parametrize(
    "world",
    [
        {"definition": WORLD, "digest": "another"},
        {"definition": {**WORLD, "tables": ""}, "digest": "x"},
        {"definition": "rl.envs.tool_world.packaged:AGENDA", "digest": "x"},
        {"definition": None, "digest": "x"},
        {"domain": "bookings", "seed": 0, "size": 8, "digest": "another"},
        None,
    ],
)
async def test_a_task_without_its_world_is_a_fault(world: Any) -> None:
    with pytest.raises(EnvironmentFault, match=r"has changed since|tool world"):
        await begun(task_of(world=world))


def test_an_unknown_world_is_refused() -> None:
    with pytest.raises(RequestError, match="casino"):
        find_world("casino", {})


TASKS = list(generate_tasks(20, seed=11))


async def test_the_reference_calls_earn_the_reward_and_doing_nothing_does_not() -> None:
    for task in TASKS:
        *steps, last = await played(task, task.provenance["calls"], task.answers[0] if task.answers else "Done.")
        assert all(step.tool_outcome is ToolOutcome.OK for step in steps)
        assert (last.reward, last.done, last.info["figures"][STATE]) == (1.0, True, task.provenance[REFERENCE])
        assert (await played(task, [], "I do not know"))[-1].reward == 0.0


GOAL = "You are member M2 and want the book Dune, which is B1."
NAMES = frozenset({"B1", "B2", "Dune", "Emma", "M1@B1"})


@pytest.mark.parametrize(
    ("text", "slip"),
    [
        ("I would like to borrow Dune, please.", None),
        ("Thank you, that is all. " + STOP, None),
        ("I simply want a book; I'm sorry, I cannot find my card.", None),
        ("", "says nothing"),
        ("x" * 2_001, "says more than"),
        ("As an AI language model, I have no library card.", "simulated"),
        ("I am simulating a user who wants a book.", "simulated"),
        ("I'm sorry, but I can't assist with that.", "refuses"),
        ("No, it is Emma that I want.", "names 'Emma'"),
    ],
)
def test_slips_of_simulated_users_are_detected(text: str, slip: str | None) -> None:
    found = slip_in(text, [GOAL], NAMES)
    assert (found is None) if slip is None else slip in str(found)


class Scripted:
    """Says the lines of a script; an exception among them is raised."""

    def __init__(self, *lines: str | Exception) -> None:
        self.lines = list(lines)
        self.heard: list[tuple[str, tuple[Said, ...], int]] = []

    async def say(self, goal: str, said: Sequence[Said], seed: int) -> str:
        self.heard.append((goal, tuple(said), seed))
        line = self.lines[len(self.heard) - 1]
        if isinstance(line, Exception):
            raise line
        return line


def user_task() -> Task:
    return task_of(user={"goal": GOAL})


def environment_of(user: Scripted) -> ToolWorldEnvironment:
    return ToolWorldEnvironment(ToolWorldOptions(user=UserOptions(factory="scripted")), lambda: user)


def say(message: str) -> Action:
    return Action(RESPOND, json.dumps({"message": message}))


async def test_the_user_opens_answers_and_ends_and_the_state_is_judged() -> None:
    user = Scripted("Hello, I want a book.", "Dune, it is B1. I am M2.", f"Thanks! {STOP}")
    environment = environment_of(user)
    first = await environment.reset(user_task(), seed=7)
    assert first.text == "Hello, I want a book."
    assert {tool["function"]["name"] for tool in first.tools} == {*WORLD["tools"], RESPOND}
    assert (await environment.step(say("Which one?"))).observation == "Dune, it is B1. I am M2."
    assert not (await environment.step(Action("lend", '{"book": "B1", "member": "M2"}'))).done
    last = await environment.step(say("It is yours."))
    assert (last.observation, last.done, last.reward) == ("Thanks!", True, 1.0)
    assert [len(said) for _, said, _ in user.heard] == [0, 2, 4] and {goal for goal, _, _ in user.heard} == {GOAL}
    assert {seed for _, _, seed in user.heard} == {7}


@pytest.mark.parametrize("line", ["As an AI, I have no books.", "", "It is Emma.", EnvironmentFault("not there", FaultKind.UNREACHABLE)])
async def test_a_slip_makes_the_trajectory_invalid_whenever_it_comes(line: str | Exception) -> None:
    kind = FaultKind.UNREACHABLE if isinstance(line, Exception) else FaultKind.USER
    with pytest.raises(EnvironmentFault) as at_once:
        await environment_of(Scripted(line)).reset(user_task(), seed=0)
    environment = environment_of(Scripted("Hello.", line))
    await environment.reset(user_task(), seed=0)
    with pytest.raises(EnvironmentFault) as later:
        await environment.step(say("Yes?"))
    assert at_once.value.kind is later.value.kind is kind and str(later.value).startswith(f"{kind.value}: ")
    run = Trajectory("t", "t", "p", "rl", 1, (), (), StopReason.FAULT, Outcome.INVALID, None, 0, None, None, error=str(later.value))
    assert StateVerifier().verify(user_task(), run).verdict is Outcome.INVALID


@pytest.mark.parametrize("user", [{}, {"goal": ""}, "M2", {"goal": "x", "factory": "os:system"}])
async def test_a_task_whose_user_has_no_goal_is_a_fault(user: Any) -> None:
    with pytest.raises(EnvironmentFault, match="has no goal"):
        await environment_of(Scripted("Hello.")).reset(task_of(user=user), seed=0)


async def test_a_user_without_a_configured_factory_is_refused() -> None:
    with pytest.raises(RequestError, match=r"rollout\.environments\.kinds\.tool_world\.options\.user\.factory"):
        await create(Resources()).reset(user_task(), seed=0)
    with pytest.raises(RequestError, match="there is no simulated user 'nobody'"):
        create(Resources(options={"user": {"factory": "nobody"}}))
