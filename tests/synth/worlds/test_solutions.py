"""Solutions found by calling the tools of a world: what is found by a call, what the person says, and what is asked."""

from __future__ import annotations

import asyncio
from random import Random

from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import ToolDefinition, WorldDefinition, written_tools
from synth.worlds.layout import read_layout
from synth.worlds.solutions import Explorer, WorldSolution
from synth.worlds.world_checks import TaskProof, flaw_in_words

TABLES = """CREATE TABLE people (person_id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE rooms (room_id INTEGER PRIMARY KEY, name TEXT NOT NULL, floor INTEGER NOT NULL);
CREATE TABLE stays (
    stay_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL REFERENCES people, room_id INTEGER REFERENCES rooms, until DATE
);"""
TOOLS = """
-- tool: find_person
-- Find a person.
SELECT person_id FROM people WHERE name = :name;
-- tool: stays_of
-- List the stays of a person.
SELECT stay_id, room_id, until FROM stays WHERE person_id = :person_id;
-- tool: rooms
-- List all rooms.
SELECT * FROM rooms;
-- tool: prolong
-- Let somebody stay longer.
UPDATE stays SET until = :new_until WHERE stay_id = :stay_id;
-- tool: check_in
-- Give somebody a room.
INSERT INTO stays (person_id, room_id, until) VALUES (:person_id, :room_id, :until);
"""
ROWS = {
    "people": [{"person_id": 101, "name": "Ann Berg"}, {"person_id": 102, "name": "Ole Dahl"}],
    "rooms": [{"room_id": 201, "name": "Blue", "floor": 3}, {"room_id": 202, "name": "Green", "floor": 4}],
    "stays": [
        {"stay_id": 301, "person_id": 101, "room_id": 201, "until": "2026-01-12"},
        {"stay_id": 302, "person_id": 102, "room_id": 202, "until": "2026-01-15"},
    ],
}
TYPES = {"person_id": "integer", "room_id": "integer", "stay_id": "integer", "name": "string", "new_until": "string", "until": "string"}


def world() -> tuple[WorldDefinition, Explorer]:
    empty = WorldDefinition(domain="inn", tables=TABLES, rows=ROWS, tools={})
    layout = read_layout(ToolDatabase(empty))
    spare = {"stays": [{"stay_id": 303, "person_id": 101, "room_id": 202, "until": "2026-03-01"}]}
    explorer, tools = Explorer(empty, layout, spare, Random(1)), {}
    for name, written in written_tools(TOOLS):
        used = {key: {"type": kind} for key, kind in TYPES.items() if any(f":{key}" in each["sql"] for each in written["statements"])}
        tools[name] = ToolDefinition.model_validate({**written, "parameters": used})
        assert explorer.try_tool(name, tools[name]) is None
    return empty.model_copy(update={"tools": tools}), explorer


def test_keys_are_found_by_calls_and_the_person_says_the_rest() -> None:
    made, explorer = world()
    proof = TaskProof(made)
    found = {name: list(explorer.solutions(name)) for name in made.tools}
    ways = {tuple(call.tool for call in solution.calls) for solution in found["prolong"]}
    assert ("find_person", "stays_of", "prolong") in ways
    nested = next(each for each in found["prolong"] if len(each.calls) == 3)
    assert any("the stay of the person whose name is" in detail for detail in nested.details)
    assert set(nested.hidden) <= {101, 102, 301, 302} and not set(nested.hidden) & set(nested.told)
    assert all(str(change) > "2026-01-12" for each in found["prolong"] for change in each.wish.changes.values())
    picked = next(each for each in found["check_in"] if "rooms" in {call.tool for call in each.calls})
    assert {"Blue", "Green"} & set(picked.told), "one of several rows is picked by its name"
    for solution in (each for solutions in found.values() for each in solutions):
        assert bool(solution.wish.changes) is (solution.answer is None)
        if len({call.tool for call in solution.calls}) == len(solution.calls):
            assert asyncio.run(proof.flaw(", ".join(map(str, solution.told)), solution)) is None


def test_a_tool_that_no_row_suits_says_why() -> None:
    _, explorer = world()
    never = {
        "description": "x",
        "parameters": {"name": {"type": "string"}},
        "statements": ["SELECT 1 FROM people WHERE name = :name AND 0"],
    }
    assert "Nothing was found" in (explorer.try_tool("never", ToolDefinition.model_validate(never)) or "")
    nowhere = {**never, "statements": ["SELECT :name"]}
    assert ":name is not compared" in (explorer.try_tool("nowhere", ToolDefinition.model_validate(nowhere)) or "")


def test_words_hold_the_details_and_neither_keys_that_are_found_nor_the_answer() -> None:
    solution = WorldSolution((), (), ("Ann Berg", "2026-02-01"), (101,), "floor", "Blue")
    reasons = [
        ("Where does Ann Berg stay until 2026-02-01?", None),
        ("Where does Ann Berg stay until February 1st?", None),
        ("Where does Ann Berg stay until the 1st of Feb 2026?", None),
        ("Where does Ann Berg stay until February 11?", "not_said"),
        ("Where does Ann stay until 2026-02-01?", "not_said"),
        ("Where does 101, Ann Berg, stay until 2026-02-01?", "given_away"),
        ("Which floor is Blue on, where Ann Berg stays until 2026-02-01?", "given_away"),
        ("Where does Ann Berg stay, new_until 2026-02-01?", "not_in_words"),
        ("Where is the row of Ann Berg until 2026-02-01?", "not_in_words"),
        ("Where are the tables of Ann Berg until 2026-02-01?", None),
        ("Ann Berg stays there until 2026-02-01.", "not_in_words"),
        ("Where does Ann Berg stay in room 555 until 2026-02-01?", "not_in_words"),
        ("Where does Ann Berg stay 什么 until 2026-02-01?", "not_in_words"),
        ("The clerk says where Ann Berg stays until 2026-02-01.", "not_in_words"),
    ]
    for question, kind in reasons:
        flaw = flaw_in_words(question, solution, "An inn has rooms, and tables to eat at.")
        assert (flaw and str(flaw.kind)) == kind
