"""A library and a clinic as a model writes them whose proposals are half broken: each broken one has one thing wrong, named beside it."""

from __future__ import annotations

import json
from typing import Any

from tests.synth.writing_models import asked_in

LIBRARY = """# A library

Members borrow books. Of each book there are some copies; a loan is of a book to a member, and is due on a day. The desk finds books by their
author, lends, takes back and renews. Nobody borrows a book of which no copy is left.
"""
CLINIC = """# A clinic

Patients see doctors. A doctor has a field and a room; a visit is of a patient to a doctor, at an hour. The desk finds doctors by their
field, books visits, moves them and calls them off. No doctor has two visits at one hour.
"""

TEXT, INTEGER = {"type": "text"}, {"type": "integer"}


def _of(table: str) -> dict[str, Any]:
    return {"type": "text", "refers_to": table}


def _tool(name: str, description: str, parameters: str, steps: list[Any], returns: Any = None, **others: Any) -> dict[str, Any]:
    typed = {each.rstrip("#"): INTEGER if each.endswith("#") else TEXT for each in parameters.split()}
    form = {"steps": steps} | ({} if returns is None else {"returns": returns})
    return {"name": name, "description": description, "parameters": typed, **form, **others}


def _code(name: str, description: str, parameters: str, code: str) -> dict[str, Any]:
    tool = _tool(name, description, parameters, [], code=code)
    return {key: value for key, value in tool.items() if key != "steps"}


def _task(question: str, calls: list[tuple[str, dict[str, Any]]], goal: dict[str, Any] | None = None, answer: str | None = None) -> Any:
    made = [{"tool": tool, "arguments": arguments} for tool, arguments in calls]
    return {"question": question, "calls": made, "goal": goal or {}, "answer": answer}


_LOAN = {"op": "get", "table": "loans", "key": "{member}@{book}", "name": "loan"}
_BOOK = {"op": "get", "table": "books", "key": "{book}", "name": "found"}
LIBRARY_TABLES = {
    "domain": "library",
    "tables": {
        "books": {"fields": {"title": TEXT, "author": TEXT, "copies": INTEGER}},
        "members": {"fields": {"name": TEXT, "limit": INTEGER}},
        "loans": {"fields": {"book": _of("books"), "member": _of("members"), "due": INTEGER}},
    },
}
LIBRARY_TOOLS = [
    _tool(
        "find_books",
        "List the books of an author.",
        "author",
        [{"op": "find", "table": "books", "where": {"author": "{author}"}, "name": "rows"}],
    ),
    _tool(
        "find_member",
        "List the members of a name.",
        "name",
        [{"op": "find", "table": "members", "where": {"name": "{name}"}, "name": "rows"}],
    ),
    _tool(
        "lend",
        "Lend a book to a member until a day.",
        "member book day#",
        [
            _BOOK,
            {"op": "require", "left": "{found.copies}", "comparison": ">", "right": 0, "otherwise": "no copy of {found.title} is left"},
            {
                "op": "insert",
                "table": "loans",
                "key": "{member}@{book}",
                "record": {"book": "{book}", "member": "{member}", "due": "{day}"},
            },
            {"op": "update", "table": "books", "key": "{book}", "set": {"copies": {"minus": ["{found.copies}", 1]}}},
        ],
        "lent",
    ),
    _tool(
        "take_back",
        "Take a book back.",
        "member book",
        [
            _LOAN,
            _BOOK,
            {"op": "delete", "table": "loans", "key": "{loan.key}"},
            {"op": "update", "table": "books", "key": "{book}", "set": {"copies": {"plus": ["{found.copies}", 1]}}},
        ],
        "back",
    ),
    _tool(
        "renew",
        "Let a loan be due later.",
        "member book day#",
        [_LOAN, {"op": "update", "table": "loans", "key": "{loan.key}", "set": {"due": "{day}"}}],
    ),
    _tool("count_members", "How many members are there?", "", [{"op": "find", "table": "members", "name": "rows"}]),  # used by no task
    _tool("fine", "Fine a member.", "member", [{"op": "update", "table": "fines", "key": "{member}", "set": {"sum": 1}}]),  # no such table
    _tool("rate", "Rate a book.", "book", [_BOOK], "{found.stars}"),  # no such field
    _tool("read", "Read.", "book", [{"op": "recite", "table": "books"}]),  # no such step
    _tool("answer", "Answer.", "text", [_BOOK]),  # a name that is taken
    _code("burn", "Burn a book.", "book", "def burn(state, book)\n    pass"),  # no Python
    {"name": "lose", "description": "Lose a book."},  # neither steps nor code
]
LIBRARY_RECORDS = {
    "books": {
        "B1": {"title": "Dune", "author": "Frank Herbert", "copies": 2},
        "B2": {"title": "Emma", "author": "Jane Austen", "copies": 1},
        "B3": {"title": "Persuasion", "author": "Jane Austen", "copies": 0},
        "B4": {"title": "Ubik", "author": "Philip K. Dick"},  # lacks a field
        "B5": {"title": "Molloy", "author": "Samuel Beckett", "copies": "two"},  # of another type
    },
    "members": {"M1": {"name": "Ann", "limit": 3}, "M2": {"name": "Ole", "limit": 3}, "M3": {"name": "Ida", "limit": 1}},
    "loans": {
        "M1@B2": {"book": "B2", "member": "M1", "due": 12},
        "M2@B1": {"book": "B1", "member": "M2", "due": 14},
        "M2@B4": {"book": "B4", "member": "M2", "due": 14},  # of a book that was dropped
    },
    "fines": {"M1": {"sum": 3}},  # no such table
}
_LENT = {"loans/M3@B1": {"book": "B1", "member": "M3", "due": 20}, "books/B1/copies": 1}
_FIND_IDA = ("find_member", {"name": "Ida"})
_FIND_DUNE = ("find_books", {"author": "Frank Herbert"})
LIBRARY_TASKS = [
    [
        _task(
            "Lend Ida the book by Frank Herbert until day 20.",
            [_FIND_IDA, _FIND_DUNE, ("lend", {"member": "M3", "book": "B1", "day": 20})],
            _LENT,
        ),
        _task(
            "Member M1 brings book B2 back.", [("take_back", {"member": "M1", "book": "B2"})], {"loans/M1@B2": None, "books/B2/copies": 2}
        ),
        _task("Let M2 keep B1 until day 28.", [("renew", {"member": "M2", "book": "B1", "day": 28})], {"loans/M2@B1/due": 28}),
        _task("How is the novel called that Frank Herbert wrote?", [_FIND_DUNE], answer="Dune"),
        _task(
            "M1 wants to keep B2 until day 33.", [("renew", {"member": "M1", "book": "B2", "day": 33})], {"loans/M1@B2/due": 34}
        ),  # goal_not_reached
        _task("Lend B3 to M1 until day 9.", [("lend", {"member": "M1", "book": "B3", "day": 9})], {"books/B3/copies": -1}),  # call_refused
        _task("Lend Ida a book of Herbert's.", [("lend", {"member": "M3", "book": "B1", "day": 20})], _LENT),  # not_told
        _task(
            "Let M2 have B1 until day 29.",
            [("find_member", {"name": "M2"}), ("renew", {"member": "M2", "book": "B1", "day": 29})],
            {"loans/M2@B1/due": 29},
        ),  # call_refused: a miss
    ],
    [
        _task(
            "M1 has B2 until day 40 from now on.",
            [_FIND_IDA, ("renew", {"member": "M1", "book": "B2", "day": 40})],
            {"loans/M1@B2/due": 40},
        ),  # not_told
        _task(
            "Ida asks that M1 has B2 until day 41.",
            [_FIND_IDA, ("renew", {"member": "M1", "book": "B2", "day": 41})],
            {"loans/M1@B2/due": 41},
        ),  # needless_call
        _task("Sell B1.", [("sell", {"book": "B1"})], {"books/B1/copies": 0}),  # unknown_tool
        _task(
            "Let M2 keep B1 for long.", [("renew", {"member": "M2", "book": "B1", "day": "long"})], {"loans/M2@B1/due": 99}
        ),  # wrong_arguments
        _task("Let M2 keep B1 until 30.", [("renew", {"member": "M2", "book": "B1", "day": 30})], {"loan/M2@B1/due": 30}),  # wrong_goal
        _task(
            "Is B2 there? M1 renews it to day 12.", [("renew", {"member": "M1", "book": "B2", "day": 12})], {"loans/M1@B2/due": 12}
        ),  # goal_not_reached
        _task("Look for Frank Herbert.", [_FIND_DUNE]),  # nothing_asked
        _task("Did Frank Herbert write Dune?", [_FIND_DUNE], answer="Dune"),  # answer_given
        _task("Who wrote the book of Frank Herbert's son?", [_FIND_DUNE], answer="Brian"),  # answer_not_shown
        _task(
            "Member M1 brings book B2 back!", [("take_back", {"member": "M1", "book": "B2"})], {"loans/M1@B2": None, "books/B2/copies": 2}
        ),  # double
        {"question": "Do something."},  # malformed_task
    ],
]

CLINIC_TABLES = {
    "domain": "clinic",
    "tables": {
        "doctors": {"fields": {"name": TEXT, "field": {"type": "text", "one_of": ["skin", "heart", "eyes"]}, "room": INTEGER}},
        "patients": {"fields": {"name": TEXT}},
        "visits": {"fields": {"doctor": _of("doctors"), "patient": _of("patients"), "hour": INTEGER}},
    },
}
_BOOK_VISIT = """
def book_visit(state, patient, doctor, hour):
    if any(visit["doctor"] == doctor and visit["hour"] == hour for visit in state["visits"].values()):
        raise Refused(f"{doctor} is taken at {hour}")
    state["visits"][f"{patient}-{hour}"] = {"doctor": doctor, "patient": patient, "hour": hour}
    return {"visit": f"{patient}-{hour}"}
"""
_VISITS_OF = """
def visits_of(state, patient):
    found = [{"key": key, **visit} for key, visit in sorted(state["visits"].items()) if visit["patient"] == patient]
    if not found:
        raise Nothing(f"{patient} has no visits")
    print("looking", patient)
    return found
"""
_ESCAPE = """
import random
def escape(state, patient):
    open("/etc/passwd").read()
    return "out"
"""
_DICE = """
import random
def dice(state, visit):
    state["visits"][visit]["hour"] = random.SystemRandom().randrange(10**9)
    return "rolled"
"""
_SPIN = "def spin(state, visit):\n    while True:\n        pass\n"
_ODD = "def odd(state, visit):\n    state['visits'][visit]['hour'] = 'late'\n    return 'done'\n"
CLINIC_TOOLS = [
    _tool(
        "doctors_for",
        "List the doctors of a field.",
        "field",
        [{"op": "find", "table": "doctors", "where": {"field": "{field}"}, "name": "rows"}],
    ),
    _code("visits_of", "List the visits of a patient.", "patient", _VISITS_OF),
    _code("book_visit", "Book a visit.", "patient doctor hour#", _BOOK_VISIT),
    _tool("call_off", "Call a visit off.", "visit", [{"op": "delete", "table": "visits", "key": "{visit}"}], "called off"),
    _code("escape", "Escape.", "patient", _ESCAPE),  # fails when it is called
    _code("dice", "Roll dice.", "visit", _DICE),  # never the same
    _code("spin", "Spin.", "visit", _SPIN),  # takes too long
    _code("odd", "Be odd.", "visit", _ODD),  # breaks the rules of its table
    _code("misnamed", "Do nothing.", "visit", "def other(state, visit):\n    return 1\n"),  # no function of its name
]
CLINIC_RECORDS = {
    "doctors": {
        "D1": {"name": "Berg", "field": "skin", "room": 3},
        "D2": {"name": "Dahl", "field": "heart", "room": 4},
        "D3": {"name": "Fox", "field": "feet", "room": 5},
    },
    "patients": {"P1": {"name": "Per"}, "P2": {"name": "Liv"}},
    "visits": {"P1-9": {"doctor": "D1", "patient": "P1", "hour": 9}, "P2-9": {"doctor": "D3", "patient": "P2", "hour": 9}},
}
_BOOKED = {"visits/P2-10": {"doctor": "D2", "patient": "P2", "hour": 10}}
CLINIC_TASKS = [
    [
        _task(
            "Book P2 with a heart doctor at 10.",
            [("doctors_for", {"field": "heart"}), ("book_visit", {"patient": "P2", "doctor": "D2", "hour": 10})],
            _BOOKED,
        ),
        _task(
            "Call off the visit of patient P1.", [("visits_of", {"patient": "P1"}), ("call_off", {"visit": "P1-9"})], {"visits/P1-9": None}
        ),
        _task("Which doctor does P1 see?", [("visits_of", {"patient": "P1"})], answer="D1"),
        _task("Let P1 out.", [("escape", {"patient": "P1"})], {"visits/P1-9": None}),  # tool_failed
        _task("Roll for P1-9.", [("dice", {"visit": "P1-9"})], {"visits/P1-9/hour": 4}),  # goal_not_reached
        _task("Spin P1-9.", [("spin", {"visit": "P1-9"})], {"visits/P1-9/hour": 4}),  # tool_failed
        _task("Make P1-9 odd.", [("odd", {"visit": "P1-9"})], {"visits/P1-9/hour": 4}),  # call_refused
        _task(
            "Book P2 with D1 at 9.",
            [("book_visit", {"patient": "P2", "doctor": "D1", "hour": 9})],
            {"visits/P2-9": {"doctor": "D1", "patient": "P2", "hour": 9}},
        ),  # call_refused
    ],
]


def world_writer(body: dict[str, Any]) -> str:
    """A teacher that proposes one of the two domains, part by part, by what it is shown; tasks by how often it was asked before."""
    system, asked = str(body["messages"][0]["content"]), asked_in(body)
    is_library = "# A library" in asked
    if system.startswith("You design the database"):
        return json.dumps(LIBRARY_TABLES if is_library else CLINIC_TABLES)
    if system.startswith("You write the tools"):
        return json.dumps({"tools": LIBRARY_TOOLS if is_library else CLINIC_TOOLS})
    if system.startswith("You fill the database"):
        return json.dumps({"records": LIBRARY_RECORDS if is_library else CLINIC_RECORDS})
    tasks = LIBRARY_TASKS if is_library else CLINIC_TASKS
    return json.dumps({"tasks": tasks[body["seed"] % len(tasks)]})
