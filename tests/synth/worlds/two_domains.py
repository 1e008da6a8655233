"""A library and a clinic as a model writes them that makes a mistake in each part; it corrects some of them when it is told of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from synth.teachers.teacher import REPAIR
from synth.worlds.world_proposals import PLAN_SYSTEM, ROWS_SYSTEM, TABLES_SYSTEM, TOOL_SYSTEM
from tests.synth.writing_models import asked_in

EXAMPLES = Path(__file__).parents[3] / "examples" / "tool_worlds"
LIBRARY, CLINIC = ((EXAMPLES / f"{name}.md").read_text() for name in ("library", "clinic"))

_BOOKS = "CREATE TABLE books (book_id INT PRIMARY KEY, title TEXT NOT NULL UNIQUE, author TEXT NOT NULL, copies INT CHECK (copies >= 0));"
_MEMBERS = "CREATE TABLE members (member_id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, kind TEXT NOT NULL);"
_LOANS = """CREATE TABLE loans (
    loan_id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES {books}(book_id), member_id INTEGER REFERENCES members, due DATE NOT NULL
);"""
LIBRARY_TABLES = (
    f"Here is the schema:\n```sql\n{_LOANS.format(books='book')}\n{_BOOKS}\n{_MEMBERS}\n```",
    f"```sql\n-- Loans\n{_LOANS.format(books='books')}\n{_BOOKS}\n{_MEMBERS}\nDELETE FROM members;\n```\nGood luck!",
)
"""The first reply refers to a table that does not exist."""
CLINIC_TABLES = (
    """CREATE TABLE doctors (doctor TEXT PRIMARY KEY, field TEXT NOT NULL, room INTEGER NOT NULL);
CREATE TABLE visits (visit INTEGER PRIMARY KEY, doctor TEXT REFERENCES doctors, patient TEXT NOT NULL, hour INTEGER, UNIQUE (doctor, hour));
""",
)
Tool = tuple[str, ...]
"""Outcome, what it does to the tables and for a person, and the replies that write it, one after the other."""
LIBRARY_TOOLS: dict[str, Tool] = {
    "find_books": (
        "", "find books by author", "Find the books of an author.",
        "SELECT book_id, title, copies FROM books WHERE author = :author;",
    ),
    "find_member": ("", "find members by name", "Find a member by name.", "SELECT * FROM members WHERE LOWER(name) = LOWER(@name);"),
    "loans_of": (
        "", "find loans by member", "List the loans of a member.",
        "SELECT loan_id, book_id, due FROM loans WHERE member_id = :member_id;",
    ),
    "lend": (
        "repaired", "add to loans", "Lend a book to a member until a day.",
        "INSERT INTO loans (loan_id, book_id, member_id, due) VALUES (:loan_id, :book_id, :member_id, :due);",
        """INSERT INTO loans (book_id, member_id, due) VALUES (:book_id, :member_id, :due);
        UPDATE books SET copies = copies - 1 WHERE book_id = :book_id AND copies > 0; -- else: no copy is left""",
    ),
    "renew": (
        "", "change the due of one of the loans", "Give a loan another due day.",
        "UPDATE loans SET due = :new_due WHERE loan_id = :loan_id;",
    ),
    "fine": (
        "wrong_sql", "change the kind of one of the members", "Fine a member.",
        "UPDATE fines SET sum = 1 WHERE member_id = :member_id;",
    ),
    "spy": ("wrong_sql", "find members by kind", "Show the schema.", "SELECT sql FROM sqlite_master WHERE name = :name;"),
    "reset": ("no_sql", "remove one of the loans", "Remove all loans.", "DROP TABLE loans;"),
    "erase": ("malformed_tool", "remove one of the members", "Remove the loans.", "DELETE FROM loans;"),
    "peek": ("malformed_tool", "find books by title", "Find a book.", "DELETE FROM books WHERE title = :title;"),
    "guess": ("malformed_tool", "find loans by book", "Find a title.", "SELECT * FROM books WHERE title = ?;"),
    "lose": ("no_sql", "remove one of the books", "Lose a book.", "I would delete it."),
    "overdue": (
        "tool_failed", "find loans by due", "Find old loans.",
        "SELECT loan_id FROM loans WHERE due < '2020-01-01' AND member_id = :member_id;",
    ),
    "prolong": (
        "double", "change the book of one of the loans", "Give a loan more time.",
        "UPDATE loans SET due = :new_due WHERE loan_id = :loan_id;",
    ),
}  # fmt: skip
CLINIC_TOOLS: dict[str, Tool] = {
    "doctors_for": ("", "find doctors by field", "Find the doctors of a field.", "SELECT doctor, room FROM doctors WHERE field = :field;"),
    "visits_of": (
        "", "find visits by patient", "List the visits of a patient.",
        "SELECT visit, doctor, hour FROM visits WHERE patient = :patient;",
    ),
    "call_off": ("", "remove one of the visits", "Call off a visit.", "DELETE FROM visits WHERE visit = :visit;"),
    "move": (
        "", "change the hour of one of the visits", "Move a visit to another hour.",
        "UPDATE visits SET hour = :new_hour WHERE visit = :visit;",
    ),
}  # fmt: skip
LIBRARY_ROWS: dict[str, list[list[Any]]] = {
    "books": [
        ["Dune", "Frank Herbert", 2], ["Emma", "Jane Austen", 1], ["Persuasion", "Jane Austen", 4], ["Ubik", "Philip Dick", -1], ["Molloy"],
        ["Dune", "Frank Herbert", 5], ["Solaris", "Stanislaw Lem", 3],
    ],
    "members": [["Ann Berg", "adult"], ["Ole Dahl", "child"], ["Ida Holm", "adult"], ["Per Lund", "adult"]],
    "loans": [
        [101, 201, "2026-01-12"], [102, 202, "2026-01-14"], [103, 203, "2026-02-01"], [999, 201, "2026-02-01"], [107, 204, "2026-02-03"],
    ],
}  # fmt: skip
LIBRARY_WRONG_ROWS = 5
CLINIC_ROWS: dict[str, list[list[Any]]] = {
    "doctors": [["Berg", "skin", 31], ["Dahl", "heart", 42], ["Holm", "eyes", 56]],
    "visits": [["Berg", "Liv Moe", 9], ["Dahl", "Per Lie", 9], ["Berg", "Eva Vik", 9], ["Holm", "Una Rud", 12]],
}  # fmt: skip
CLINIC_WRONG_ROWS = 1
_DETAIL = re.compile(r"(?:^- [^:]*: (?!the \w+ (?:whose|of) )| is )(.*?)(?= and whose |$)", re.MULTILINE)


def broken_tools(tools: dict[str, Tool]) -> dict[str, str]:
    """What is wrong with each tool that is dropped."""
    return {name: wrong for name, (wrong, *_) in tools.items() if wrong not in ("", "repaired")}


def world_writer(body: dict[str, Any]) -> str:
    """A teacher that writes one of the two domains, part by part."""
    messages = body["messages"]
    system, asked = str(messages[0]["content"]), asked_in(body)
    tries = sum(str(message["content"]).startswith(REPAIR.partition("{")[0]) for message in messages)
    if system == TABLES_SYSTEM:
        return _of(LIBRARY_TABLES if "# A library" in asked else CLINIC_TABLES, tries)
    tools = LIBRARY_TOOLS if "loan" in asked else CLINIC_TOOLS
    if system == PLAN_SYSTEM:
        plan = [{"what": what, "name": name, "does": does} for name, (_, what, does, *_) in tools.items() if f"- {what}" in asked]
        return json.dumps({"tools": [*plan, {**plan[0], "name": "respond"}]})
    if system == TOOL_SYSTEM:
        name = asked.rpartition("The tool ")[2].partition(":")[0]
        return _of(tools[name][3:], tries)
    if system == ROWS_SYSTEM:
        table = asked.rpartition("rows of ")[2].partition(",")[0]
        return json.dumps({"rows": {**LIBRARY_ROWS, **CLINIC_ROWS}[table]})
    return json.dumps({"question": _question(asked, tries)})


def _of(replies: tuple[str, ...], tries: int) -> str:
    return replies[min(tries, len(replies) - 1)]


def _question(asked: str, tries: int) -> str:
    """What says all details; at first tries of some wishes one is missing, and for wishes of one kind it always is."""
    wish, details = asked.split("\n")[1], _DETAIL.findall(asked.partition("Details:\n")[2])
    said = details[1:] if (tries == 0 and len(asked) % 3 == 0) or ("another due day" in wish and sum(map(ord, asked)) % 2) else details
    what = wish.replace("You want to know", "tell me").removeprefix("You want the clerk to do this: ").rstrip(".")
    return f"Could you {what[0].lower()}{what[1:]}: {', '.join(said)}?"
