"""A library and a clinic as a model writes them whose proposals are half broken; each broken one bears the name of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.synth.writing_models import asked_in

EXAMPLES = Path(__file__).parents[3] / "examples" / "tool_worlds"
LIBRARY, CLINIC = ((EXAMPLES / f"{name}.md").read_text() for name in ("library", "clinic"))
Proposal = tuple[str, dict[str, Any]]
"""What is wrong with it, or nothing; and what is proposed."""
TEXT, INTEGER = {"type": "text"}, {"type": "integer"}


def _key_of(table: str) -> dict[str, Any]:
    return {"type": "text", "refers_to": table}


def _tool(wrong: str, name: str, parameters: str, steps: list[Any] | None = None, returns: Any = None, code: str = "") -> Proposal:
    """A tool; parameters whose names end with # are whole numbers."""
    typed = {each.rstrip("#"): INTEGER if each.endswith("#") else TEXT for each in parameters.split()}
    form = {"steps": steps, "returns": returns, "code": code or None}
    given = {key: value for key, value in form.items() if value is not None}
    return wrong, {"name": name, "description": f"To {name.replace('_', ' ')}.", "parameters": typed, **given}


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else text.replace("_", " ")


def _task(wrong: str, question: str, calls: str = "", goal: dict[str, Any] | None = None, answer: str | None = None) -> Proposal:
    """A task, its calls as in `lend member=M3 day=20; find_books author=Jane_Austen`."""
    made = []
    for call in calls.split("; ") if calls else ():
        tool, *given = call.split()
        made.append({"tool": tool, "arguments": {name: _value(value) for name, _, value in (each.partition("=") for each in given)}})
    return wrong, {"question": question, "calls": made, "goal": goal or {}, "answer": answer}


def _find(table: str, field: str = "") -> dict[str, Any]:
    return {"op": "find", "table": table, "where": {field: f"{{{field}}}"} if field else {}, "name": "rows"}


def _require(left: str, comparison: str, right: Any, otherwise: str) -> dict[str, Any]:
    return {"op": "require", "left": left, "comparison": comparison, "right": right, "otherwise": otherwise}


def _set(table: str, key: str, **values: Any) -> dict[str, Any]:
    return {"op": "update", "table": table, "key": key, "set": values}


_LOAN = {"op": "get", "table": "loans", "key": "{member}@{book}", "name": "loan"}
_BOOK = {"op": "get", "table": "books", "key": "{book}", "name": "found"}
_RECORD = {"book": "{book}", "member": "{member}", "due": "{day}"}
LIBRARY_TABLES = {
    "domain": "library",
    "tables": {
        "books": {"fields": {"title": TEXT, "author": TEXT, "copies": INTEGER}},
        "members": {"fields": {"name": TEXT, "limit": INTEGER}},
        "loans": {"fields": {"book": _key_of("books"), "member": _key_of("members"), "due": INTEGER}},
    },
}
LIBRARY_TOOLS = [
    _tool("", "find_books", "author", [_find("books", "author")]),
    _tool("", "find_member", "name", [_find("members", "name")]),
    _tool(
        "",
        "lend",
        "member book day#",
        [
            _BOOK,
            _require("{found.copies}", ">", 0, "no copy of {found.title} is left"),
            {"op": "insert", "table": "loans", "key": "{member}@{book}", "record": _RECORD},
            _set("books", "{book}", copies={"minus": ["{found.copies}", 1]}),
        ],
        "lent",
    ),
    _tool(
        "",
        "take_back",
        "member book",
        [
            _LOAN,
            _BOOK,
            {"op": "delete", "table": "loans", "key": "{loan.key}"},
            _set("books", "{book}", copies={"plus": ["{found.copies}", 1]}),
        ],
        "back",
    ),
    _tool("", "renew", "member book day#", [_LOAN, _set("loans", "{loan.key}", due="{day}")]),
    _tool("tool_unused", "count_members", "", [_find("members")]),
    _tool("wrong_steps", "fine", "member", [_set("fines", "{member}", sum=1)]),
    _tool("wrong_steps", "rate", "book", [_BOOK], "{found.stars}"),
    _tool("wrong_steps", "describe", "author", [_find("books", "author")], "They are {rows}"),
    _tool("malformed_tool", "read", "book", [{"op": "recite", "table": "books"}]),
    _tool("malformed_tool", "answer", "book", [_BOOK]),
    _tool("malformed_tool", "respond", "book", [_BOOK]),
    _tool("malformed_tool", "lose", "book"),
    _tool("code_failed", "burn", "book", code="def burn(state, book)\n    pass"),
]
LIBRARY_RECORDS = {
    "books": {
        "B1": {"title": "Dune", "author": "Frank Herbert", "copies": 2},
        "B2": {"title": "Emma", "author": "Jane Austen", "copies": 1},
        "B3": {"title": "Persuasion", "author": "Jane Austen", "copies": 0},
        "B4": {"title": "Ubik", "author": "Philip K. Dick"},
        "B5": {"title": "Molloy", "author": "Samuel Beckett", "copies": "two"},
        "B/6": {"title": "Murphy", "author": "Samuel Beckett", "copies": 1},
    },
    "members": {"M1": {"name": "Ann", "limit": 3}, "M2": {"name": "Ole", "limit": 3}, "M3": {"name": "Ida", "limit": 1}},
    "loans": {
        "M1@B2": {"book": "B2", "member": "M1", "due": 12},
        "M2@B1": {"book": "B1", "member": "M2", "due": 14},
        "M2@B4": {"book": "B4", "member": "M2", "due": 14},
    },
    "fines": {"F1": {"sum": 3}},
}
LIBRARY_WRONG_RECORDS = {
    "B4": "record_misfit",
    "B5": "record_misfit",
    "B/6": "record_misfit",
    "F1": "record_misfit",
    "M2@B4": "dangling_reference",
}
_LENT = {"loans/M3@B1": {"book": "B1", "member": "M3", "due": 20}, "books/B1/copies": 1}
_BACK = {"loans/M1@B2": None, "books/B2/copies": 2}
_DUNE = "find_books author=Frank_Herbert"
LIBRARY_TASKS = [
    _task("", "Lend Ida the book by Frank Herbert until day 20.", f"find_member name=Ida; {_DUNE}; lend member=M3 book=B1 day=20", _LENT),
    _task("", "Member M1 brings book B2 back.", "take_back member=M1 book=B2", _BACK),
    _task("", "Let M2 keep B1 until day 28.", "renew member=M2 book=B1 day=28", {"loans/M2@B1/due": 28}),
    _task("", "Let M2 keep B1 until day 31.", "renew member=M2 book=B1 day=31", {"loans/M2@B1/due": 31}),
    _task("", "How is the novel called that Frank Herbert wrote?", _DUNE, answer="Dune"),
    _task("", "Ann brings book B2 back.", "find_member name=Ann; take_back member=M1 book=B2", _BACK),
    _task("goal_not_reached", "Let M1 keep B2 until day 33.", "renew member=M1 book=B2 day=33", {"loans/M1@B2/due": 34}),
    _task("goal_not_reached", "Let M1 keep B2 until day 12.", "renew member=M1 book=B2 day=12", {"loans/M1@B2/due": 12}),
    _task("goal_not_reached", "M1 brings B2 back today.", "take_back member=M1 book=B2", {"loans/M1@B2": None}),
    _task("call_refused", "Lend B3 to M1 until day 9.", "lend member=M1 book=B3 day=9", {"books/B3/copies": 7}),
    _task("call_refused", "Let M2 have B1 until 29.", "find_member name=M2; renew member=M2 book=B1 day=29", {"loans/M2@B1/due": 29}),
    _task("not_told", "Lend Ida a book of Herbert's.", "lend member=M3 book=B1 day=20", _LENT),
    _task("needless_call", "Ida: M1 keeps B2 until 41.", "find_member name=Ida; renew member=M1 book=B2 day=41", {"loans/M1@B2/due": 41}),
    _task("unknown_tool", "Sell B1.", "sell book=B1", {"books/B1/copies": 0}),
    _task("unknown_tool", "Fine M1.", "fine member=M1", {"members/M1/limit": 0}),
    _task("wrong_arguments", "Let M2 keep B1 for long.", "renew member=M2 book=B1 day=long", {"loans/M2@B1/due": 99}),
    _task("wrong_arguments", "Let M2 keep B1.", "renew member=M2 book=B1", {"loans/M2@B1/due": 99}),
    _task("wrong_goal", "Let M2 keep B1 until 30.", "renew member=M2 book=B1 day=30", {"loan/M2@B1/due": 30}),
    _task("wrong_goal", "Let M2 keep B1 until 32.", "renew member=M2 book=B1 day=32", {"loans/M2@B1/due": "32"}),
    _task("nothing_asked", "Look for Frank Herbert.", _DUNE),
    _task("answer_given", "Did Frank Herbert write Dune?", _DUNE, answer="Dune"),
    _task("answer_not_shown", "Who is the son of Frank Herbert?", _DUNE, answer="Brian"),
    _task("double", "Member M1 brings book B2 back!", "take_back member=M1 book=B2", _BACK),
    _task("malformed_task", "Do something."),
    _task("malformed_task", "Look often for Frank Herbert.", "; ".join([_DUNE] * 9), answer="Dune"),
]

CLINIC_TABLES = {
    "domain": "clinic",
    "tables": {
        "doctors": {"fields": {"name": TEXT, "field": {"type": "text", "one_of": ["skin", "heart", "eyes"]}, "room": INTEGER}},
        "patients": {"fields": {"name": TEXT}},
        "visits": {"fields": {"doctor": _key_of("doctors"), "patient": _key_of("patients"), "hour": INTEGER}},
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
_DICE = """
import os
def dice(state, visit):
    state["visits"][visit]["hour"] = 4
    return os.urandom(8).hex()
"""
CLINIC_TOOLS = [
    _tool("", "doctors_for", "field", [_find("doctors", "field")]),
    _tool("", "visits_of", "patient", code=_VISITS_OF),
    _tool("", "book_visit", "patient doctor hour#", code=_BOOK_VISIT),
    _tool("", "call_off", "visit", [{"op": "delete", "table": "visits", "key": "{visit}"}], "called off"),
    _tool("", "strike_off", "doctor", [{"op": "delete", "table": "doctors", "key": "{doctor}"}], "gone"),
    _tool("tool_unused", "escape", "patient", code="def escape(state, patient):\n    return open('/etc/passwd').read()\n"),
    _tool("tool_unused", "dice", "visit", code=_DICE),
    _tool("tool_unused", "spin", "visit", code="def spin(state, visit):\n    while True:\n        pass\n"),
    _tool("tool_unused", "odd", "visit", code="def odd(state, visit):\n    state['visits'][visit]['hour'] = 'late'\n"),
    _tool("code_failed", "misnamed", "visit", code="def other(state, visit):\n    return 1\n"),
]
CLINIC_RECORDS = {
    "doctors": {
        "D1": {"name": "Berg", "field": "skin", "room": 3},
        "D2": {"name": "Dahl", "field": "heart", "room": 4},
        "D3": {"name": "Fox", "field": "feet", "room": 5},
        "D4": {"name": "Holm", "field": "eyes", "room": 6},
    },
    "patients": {"P1": {"name": "Per"}, "P2": {"name": "Liv"}},
    "visits": {"P1-9": {"doctor": "D1", "patient": "P1", "hour": 9}, "P2-9": {"doctor": "D3", "patient": "P2", "hour": 9}},
}
CLINIC_WRONG_RECORDS = {"D3": "record_misfit", "P2-9": "dangling_reference"}
_BOOKED = {"visits/P2-10": {"doctor": "D2", "patient": "P2", "hour": 10}}
_ROLLED = {"visits/P1-9/hour": 4}
CLINIC_TASKS = [
    _task("", "Book P2 with a heart doctor at 10.", "doctors_for field=heart; book_visit patient=P2 doctor=D2 hour=10", _BOOKED),
    _task("", "Call off the visit of patient P1.", "visits_of patient=P1; call_off visit=P1-9", {"visits/P1-9": None}),
    _task("", "Which doctor does P1 see?", "visits_of patient=P1", answer="D1"),
    _task("", "Strike doctor D4 off.", "strike_off doctor=D4", {"doctors/D4": None}),
    _task("tool_failed", "Let P1 out.", "escape patient=P1", {"visits/P1-9": None}),
    _task("tool_failed", "Spin P1-9.", "spin visit=P1-9", _ROLLED),
    _task("not_repeatable", "Roll for P1-9.", "dice visit=P1-9", _ROLLED),
    _task("call_refused", "Make P1-9 odd.", "odd visit=P1-9", _ROLLED),
    _task("call_refused", "Strike doctor D1 off.", "strike_off doctor=D1", {"doctors/D1": None}),
    _task("call_refused", "Book P2 with D1 at 9.", "book_visit patient=P2 doctor=D1 hour=9", {"visits/P1-9/hour": 9}),
]


def broken(proposals: list[Proposal]) -> list[Proposal]:
    """Those that something is wrong with."""
    return [each for each in proposals if each[0]]


def world_writer(body: dict[str, Any]) -> str:
    """A teacher that proposes one of the two domains, part by part, by what it is shown."""
    system, is_library = str(body["messages"][0]["content"]), "# A library" in asked_in(body)
    if system.startswith("You design the database"):
        return json.dumps(LIBRARY_TABLES if is_library else CLINIC_TABLES)
    if system.startswith("You write the tools"):
        return json.dumps({"tools": [tool for _, tool in (LIBRARY_TOOLS if is_library else CLINIC_TOOLS)]})
    if system.startswith("You fill the database"):
        return f"```json\n{json.dumps({'records': LIBRARY_RECORDS if is_library else CLINIC_RECORDS})}\n```"
    tasks = [task for _, task in (LIBRARY_TASKS if is_library else CLINIC_TASKS)]
    return json.dumps({"tasks": [*tasks, "Lend!"] if is_library else tasks})
