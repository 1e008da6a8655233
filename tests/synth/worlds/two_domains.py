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

LIBRARY_TABLES = """Here is the schema:
```sql
-- Books of the library
CREATE TABLE books (id TEXT PRIMARY KEY, title TEXT NOT NULL, author TEXT NOT NULL, copies INTEGER NOT NULL CHECK (copies >= 0));
CREATE TABLE IF NOT EXISTS members (id TEXT PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE loans (
    id INTEGER PRIMARY KEY, book_id TEXT NOT NULL REFERENCES books(id), member_id TEXT NOT NULL REFERENCES members(id), due INTEGER
);
INSERT INTO members VALUES ('M0', 'Nobody');
```
Good luck!"""
LIBRARY_TOOLS = {
    "find_books": ("", "-- :author text who wrote it\nSELECT * FROM books WHERE author = :author;"),
    "find_member": ("", "-- Find a member.\nSELECT * FROM members WHERE name = :name;"),
    "lend": (
        "",
        """-- Lend a book until a day.
        -- :member_id text
        -- :book_id text
        -- :due integer the day
        INSERT INTO loans (book_id, member_id, due) VALUES (:book_id, :member_id, :due);
        UPDATE books SET copies = copies - 1 WHERE id = :book_id AND copies > 0; -- else: no copy is left""",
    ),
    "take_back": (
        "",
        """-- Take a book back.
        UPDATE books SET copies = copies + 1 WHERE id = :book_id;
        DELETE FROM loans WHERE member_id = :member_id AND book_id = :book_id; -- else: there is no such loan""",
    ),
    "renew": ("", "UPDATE loans SET due = :due WHERE member_id = :member_id AND book_id = :book_id;"),
    "count_members": ("tool_unused", "SELECT count(*) FROM members;"),
    "fine": ("wrong_sql", "UPDATE fines SET sum = 1 WHERE member_id = :member_id;"),
    "rate": ("wrong_sql", "SELECT stars FROM books WHERE id = :book_id;"),
    "spy": ("wrong_sql", "SELECT sql FROM sqlite_master;"),
    "reset": ("malformed_tool", "DROP TABLE loans;"),
    "read": ("malformed_tool", "PRAGMA table_info(books);"),
    "answer": ("malformed_tool", "SELECT * FROM books;"),
    "respond": ("malformed_tool", "SELECT * FROM books;"),
    "lose": ("malformed_tool", "-- Lose a book."),
    "renew_all": ("mended", "UPDATE loans SET due = due + :days WHERE until > 0;"),
}
MENDED = "```sql\n-- tool: renew_all\n-- :days integer\nUPDATE loans SET due = due + :days;\n\n-- tool: rate\nSELECT 5 FROM stars;\n```"
LIBRARY_ROWS = """```sql
INSERT INTO books (id, title, author, copies) VALUES ('B1', 'Dune', 'Frank Herbert', 2), ('B2', 'Emma', 'Jane Austen', 1);
INSERT INTO books (id, title, author, copies) VALUES ('B3', 'Persuasion', 'Jane Austen', 0);
INSERT INTO books (id, title, author, copies) VALUES ('B4', 'Ubik', 'Philip K. Dick', -1);
INSERT INTO books (id, title) VALUES ('B5', 'Molloy');
INSERT INTO members (id, name) VALUES ('M1', 'Ann'), ('M2', 'Ole'), ('M3', 'Ida');
INSERT INTO loans (book_id, member_id, due) VALUES ('B2', 'M1', 12), ('B1', 'M2', 14), ('B4', 'M2', 14);
INSERT INTO fines (id, sum) VALUES (1, 3);
DELETE FROM members;
```"""
LIBRARY_WRONG_ROWS = 4
_LENT = ["INSERT INTO loans (book_id, member_id, due) VALUES ('B1', 'M3', 20)", "UPDATE books SET copies = 1 WHERE id = 'B1'"]
_BACK = ["DELETE FROM loans WHERE member_id = 'M1'; UPDATE books SET copies = 2 WHERE id = 'B2';"]
_DUNE = "find_books author=Frank_Herbert"


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else text.replace("_", " ")


def _task(wrong: str, question: str, calls: str = "", goal: list[str] | None = None, answer: str | None = None) -> Proposal:
    """A task, its calls as in `lend member_id=M3 due=20; find_books author=Jane_Austen`."""
    made = []
    for call in calls.split("; ") if calls else ():
        tool, *given = call.split()
        made.append({"tool": tool, "arguments": {name: _value(value) for name, _, value in (each.partition("=") for each in given)}})
    return wrong, {"question": question, "calls": made, "goal": goal or [], "answer": answer}


def _due(day: int | str, member: str = "M2") -> list[str]:
    return [f"UPDATE loans SET due = {day!r} WHERE member_id = '{member}'"]


def _renew(day: int | str, member: str = "M2", book: str = "B1") -> str:
    return f"renew member_id={member} book_id={book} due={day}"


_LEND = "lend member_id=M3 book_id=B1 due=20"
LIBRARY_TASKS = [
    _task("", "Lend Ida the book by Frank Herbert until day 20.", f"find_member name=Ida; {_DUNE}; {_LEND}", _LENT),
    _task("", "Member M1 brings book B2 back.", "take_back member_id=M1 book_id=B2", _BACK),
    _task("", "Let M2 keep B1 until day 28.", _renew(28), _due(28)),
    _task("", "Let M2 keep B1 until day 31.", _renew(31), _due(31)),
    _task("", "How is the novel called that Frank Herbert wrote?", _DUNE, answer="Dune"),
    _task("", "Ann brings book B2 back.", "find_member name=Ann; take_back member_id=M1 book_id=B2", _BACK),
    _task("", "Give all loans 3 more days.", "renew_all days=3", ["UPDATE loans SET due = due + 3"]),
    _task("goal_not_reached", "Let M1 keep B2 until day 33.", _renew(33, "M1", "B2"), _due(34, "M1")),
    _task("nothing_asked", "Let M1 keep B2 until day 12.", _renew(12, "M1", "B2"), _due(12, "M1")),
    _task(
        "goal_not_reached", "M1 brings B2 back today.", "take_back member_id=M1 book_id=B2", ["DELETE FROM loans WHERE member_id = 'M1'"]
    ),
    _task("call_refused", "Lend B3 to M1 until day 9.", "lend member_id=M1 book_id=B3 due=9", ["UPDATE books SET copies = 7"]),
    _task("call_refused", "Let M2 have B1 until 29.", f"find_member name=M2; {_renew(29)}", _due(29)),
    _task("not_told", "Lend Ida a book of Herbert's.", _LEND, _LENT),
    _task("needless_call", "Ida: M1 keeps B2 until 41.", f"find_member name=Ida; {_renew(41, 'M1', 'B2')}", _due(41, "M1")),
    _task("unknown_tool", "Sell B1.", "sell book_id=B1", ["UPDATE books SET copies = 0 WHERE id = 'B1'"]),
    _task("unknown_tool", "Fine M1.", "fine member_id=M1", ["UPDATE members SET name = '' WHERE id = 'M1'"]),
    _task("wrong_arguments", "Let M2 keep B1 for long.", _renew("long"), _due(99)),
    _task("wrong_arguments", "Let M2 keep B1.", "renew member_id=M2 book_id=B1", _due(99)),
    _task("wrong_goal", "Let M2 keep B1 until 30.", _renew(30), ["UPDATE loan SET due = 30"]),
    _task("wrong_goal", "Let M2 keep B1 until 32.", _renew(32), ["UPDATE loans SET due = 32 WHERE member_id = 'M9'"]),
    _task("wrong_goal", "Let M2 keep B1 until 35.", _renew(35), ["PRAGMA foreign_keys = OFF", *_due(35)]),
    _task("nothing_asked", "Look for Frank Herbert.", _DUNE),
    _task("answer_given", "Did Frank Herbert write Dune?", _DUNE, answer="Dune"),
    _task("answer_not_shown", "Who is the son of Frank Herbert?", _DUNE, answer="Brian"),
    _task("double", "Member M1 brings book B2 back!", "take_back member_id=M1 book_id=B2", _BACK),
    _task("malformed_task", "Do something."),
    _task("malformed_task", "Look often for Frank Herbert.", "; ".join([_DUNE] * 9), answer="Dune"),
]

CLINIC_TABLES = """CREATE TABLE doctors (id TEXT PRIMARY KEY, name TEXT, field TEXT CHECK (field IN ('skin', 'heart', 'eyes')), room INT);
CREATE TABLE patients (id TEXT PRIMARY KEY, name TEXT);
CREATE TABLE visits (
    id INTEGER PRIMARY KEY, doctor TEXT REFERENCES doctors, patient TEXT REFERENCES patients, hour INT, UNIQUE (doctor, hour)
);
"""
CLINIC_TOOLS = {
    "doctors_for": ("", "-- :field text skin, heart or eyes\nSELECT id, name FROM doctors WHERE field = :field;"),
    "visits_of": ("", "-- List the visits of a patient.\nSELECT * FROM visits WHERE patient = :patient ORDER BY hour;"),
    "book_visit": ("", "INSERT INTO visits (doctor, patient, hour) VALUES (:doctor, :patient, :hour);"),
    "call_off": ("", "-- :id int the visit\nDELETE FROM visits WHERE id = :id;"),
    "strike_off": ("", "-- :doctor text\nDELETE FROM doctors WHERE id = :doctor;"),
    "count_all": ("tool_unused", f"SELECT count(*) FROM {', '.join(f'patients p{number}' for number in range(20))};"),
    "dice": ("wrong_sql", "UPDATE visits SET hour = abs(random() % 10) WHERE id = :id;"),
}
CLINIC_ROWS = """INSERT INTO doctors (id, name, field, room) VALUES ('D1', 'Berg', 'skin', 3), ('D2', 'Dahl', 'heart', 4);
INSERT INTO doctors (id, name, field, room) VALUES ('D4', 'Holm', 'eyes', 6);
INSERT INTO doctors (id, name, field, room) VALUES ('D3', 'Fox', 'feet', 5);
INSERT INTO patients (id, name) VALUES ('P1', 'Per'), ('P2', 'Liv');
INSERT INTO visits (doctor, patient, hour) VALUES ('D1', 'P1', 9), ('D3', 'P2', 9);
"""
CLINIC_WRONG_ROWS = 2
_BOOKED = ["INSERT INTO visits (doctor, patient, hour) VALUES ('D2', 'P2', 10)"]
CLINIC_TASKS = [
    _task("", "Book P2 with a heart doctor at 10.", "doctors_for field=heart; book_visit patient=P2 doctor=D2 hour=10", _BOOKED),
    _task("", "Call off the visit of patient P1.", "visits_of patient=P1; call_off id=1", ["DELETE FROM visits WHERE patient = 'P1'"]),
    _task("", "Which doctor does P1 see?", "visits_of patient=P1", answer="D1"),
    _task("", "Strike doctor D4 off.", "strike_off doctor=D4", ["DELETE FROM doctors WHERE id = 'D4'"]),
    _task("tool_failed", "How many are there?", "count_all", answer="1048576"),
    _task("call_refused", "Strike doctor D1 off.", "strike_off doctor=D1", ["UPDATE doctors SET room = 0"]),
    _task("call_refused", "Book P2 with D1 at 9.", "book_visit patient=P2 doctor=D1 hour=9", ["UPDATE visits SET hour = 8"]),
]


def tools_sql(tools: dict[str, tuple[str, str]]) -> str:
    """The reply that proposes these tools."""
    return "```sql\n" + "\n\n".join(f"-- tool: {name}\n{sql}" for name, (_, sql) in tools.items()) + "\n```"


def broken(proposals: list[Proposal]) -> list[Proposal]:
    """Those that something is wrong with."""
    return [each for each in proposals if each[0]]


def broken_tools(tools: dict[str, tuple[str, str]]) -> dict[str, str]:
    """What is wrong with each tool that is dropped."""
    return {name: wrong for name, (wrong, _) in tools.items() if wrong not in ("", "mended")}


def world_writer(body: dict[str, Any]) -> str:
    """A teacher that proposes one of the two domains, part by part, by what it is shown."""
    messages = body["messages"]
    system, is_library = str(messages[0]["content"]), "# A library" in str(messages[1]["content"])
    if system.startswith("You design the SQLite database"):
        return LIBRARY_TABLES if is_library else CLINIC_TABLES
    if system.startswith("You write the tools"):
        if asked_in(body).startswith("SQLite refuses"):
            return MENDED if is_library else tools_sql({"dice": CLINIC_TOOLS["dice"]})
        return tools_sql(LIBRARY_TOOLS if is_library else CLINIC_TOOLS)
    if system.startswith("You fill the SQLite database"):
        return LIBRARY_ROWS if is_library else CLINIC_ROWS
    tasks = [task for _, task in (LIBRARY_TASKS if is_library else CLINIC_TASKS)]
    return json.dumps({"tasks": [*tasks, "Lend!"] if is_library else tasks})
