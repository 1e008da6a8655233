"""Import tasks from rows: detect columns and build a task per row.

A row has a question (`question`) and usually accepted answers (`answers`: a text, a number, or a list of them). Columns are found by the
names in `FIELDS`, which include those of `verifiers` exports (`prompt`, `answer`, `info`) and Inspect (`input`, `target`, `metadata`), or
by the caller's mapping. Original GSM8K, HumanEval and MBPP files are recognised by their columns and the requested verifier.

Further data of a row goes into its task's provenance, except the keys in `RESERVED`, which select verifier and code and are set by the
caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warehouse.benchmark_sets import HUMANEVAL_COLUMNS, MARK, MBPP_COLUMNS, gsm8k_task, humaneval_task, mbpp_task, task_of
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.foreign import GUESSED, Delimiting, Row
from warehouse.importers.conversation import question_of
from warehouse.importers.messages import read_messages
from warehouse.importers.runs import ImportedRuns, MalformedRow, is_calls, texts_of, whole
from warehouse.importers.tables import table_rows
from warehouse.json_text import read_json, unique_object, why_not_storable
from warehouse.records import Failure, Task
from warehouse.replies import split_reasoning

COUNTS = ("hops", "constraints", "layers")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "key", "task_id", "example_id"),
    "question": ("question", "prompt", "input"),
    "answers": ("answers", "answer", "target", "reward_model.ground_truth"),
    "solution": ("solution",),
    "formula": ("formula",),
    **{name: (name,) for name in COUNTS},
    "provenance": ("provenance", "info", "metadata"),
    "proofs": ("proofs",),
    **dict.fromkeys(("loop", "dialect", "tools"), ()),
}
"""Task fields and the default column names for each; `a.b` is key b of object a. What a row chooses for its rollout has no default."""
RESERVED = frozenset({"verifier", "options", "rollout", "source", "place", "suite", "origin"})
"""Provenance keys that rows cannot set."""
OF_NUMBERS = ("gsm8k", "number", "math")
"""Verifiers for which an answer with GSM8K's mark is a solution, and the number after the mark the accepted answer."""

_LISTED = re.compile(r"\s*\[\s*['\"].*['\"]\s*\]\s*", re.DOTALL)
"""A list of texts in JSON or Python notation."""

_MESSAGES = re.compile(r'\s*\[\s*\{\s*"(?:role|from|content|value)"\s*:')
"""Beginning of chat messages as JSON text."""

Published = Callable[[Mapping[str, Any], str], Task]
"""Reader of a published set: converts a row and its place to a task."""


@dataclass(frozen=True, slots=True)
class TaskFormat:
    """Source, verifier, environment and columns of imported tasks.

    Attributes:
        source: prefix of every key, so that sources do not clash.
        answered: whether the verifier reads answers, so that rows must provide accepted ones.
        delimiting: delimiter and encoding of CSV; empty values are detected.
        columns: column per field of `FIELDS`, if not one of the default names.
        rollout: `loop`, `dialect` and `tools` of rows that choose none.
        listed: names that rows may choose, for `loop` and `dialect`.
    """

    source: str
    environment: str
    verifier: str
    options: Mapping[str, Any] = field(default_factory=dict)
    answered: bool = True
    columns: Mapping[str, str] = field(default_factory=dict)
    delimiting: Delimiting = GUESSED
    rollout: Mapping[str, Any] = field(default_factory=dict)
    listed: Mapping[str, Collection[str]] = field(default_factory=dict)


def read_tasks(path: Path, form: TaskFormat) -> ImportedRuns:
    """Read one training task per row, and a failure for each unusable row.

    Raises:
        RequestError: the table is missing or empty, or lacks a required or mapped column.
    """
    rows = list(table_rows(path, form.delimiting))
    found = list(dict.fromkeys(name for row in rows if isinstance(row.value, Mapping) for name in row.value))
    found += [name for name in _nested(form) if name not in found and any(column_of(row.value, name) is not None for row in rows)]
    if not rows:
        raise RequestError(f"{path} has no rows.")
    read = _reader(path, found, form) if found else None
    return tasks_of(rows, lambda row: _task(row, read, form))


def tasks_of(rows: Sequence[Row], read: Callable[[Row], Task], *faults: type[Exception]) -> ImportedRuns:
    """Read one task per row, which is an object, and a failure for each row that is none or cannot be read; `faults` are also caught."""
    tasks: list[Task] = []
    failures: list[Failure] = []
    caught: tuple[type[Exception], ...] = (MalformedRow, RequestError, RecursionError, *faults)
    for row in rows:
        try:
            if row.fault is not None or not isinstance(row.value, Mapping):
                raise MalformedRow(row.fault or "the row is not an object")
            tasks.append(read(row))
        except caught as error:
            failures.append(broken_row(row.path.name, row.line, str(error), row.text))
    return ImportedRuns(len(rows), tuple(tasks), tuple(failures))


def broken_row(file: str, line: int, reason: str, text: str = "") -> Failure:
    item = {"file": file, "line": line, "text": text[:500]}
    return Failure("import", "broken_row", f"{file}, line {line}: {reason}", item)


def _task(row: Row, read: Published | None, form: TaskFormat) -> Task:
    if read is None:
        raise MalformedRow("the row is not an object")
    task = read(row.value, f"the row in line {row.line}")
    if fault := why_not_storable([task.key, task.question, task.answers, task.provenance, task.proofs]):
        raise MalformedRow(fault)
    for text in (task.question, *task.answers):
        if "\ufffd" in text or "\x00" in text:
            what = "the question" if text is task.question else "an accepted answer"
            raise MalformedRow(f"{what} is not valid UTF-8: save it as UTF-8, or give a CSV file's --encoding")
    told = {name: value for name, value in task.provenance.items() if name not in RESERVED}
    own = {"source": form.source, "verifier": form.verifier, "place": {"file": row.path.name, "line": row.line}}
    own |= {"options": dict(form.options)} if form.options else {}
    own |= {"rollout": chosen} if (chosen := rollout_choice(row.value, form)) else {}
    identity = task.key or digest([task.question, task.answers])
    return replace(task, key=f"{form.source}-{identity}", environment=form.environment, split="train", provenance={**told, **own})


def names_in(text: str) -> list[str]:
    """Names between commas."""
    return [name for part in text.split(",") if (name := part.strip())]


def rollout_choice(row: Mapping[str, Any], form: TaskFormat) -> dict[str, Any]:
    """What the task chooses for its rollout. Raises MalformedRow for a loop or dialect that the configuration does not list."""
    chosen = dict(form.rollout)
    for name in ("loop", "dialect", "tools"):
        value = column_of(row, form.columns[name]) if name in form.columns else None
        if value in (None, ""):
            continue
        if name == "tools":
            listed = _listed(value) if isinstance(value, str) else value
            chosen[name] = [each for text in texts_of(listed) for each in names_in(text)]
        elif value not in form.listed[name]:
            raise MalformedRow(f"the {name} {value!r:.60} is none of {', '.join(sorted(form.listed[name]))}; list it in the home's rollout")
        else:
            chosen[name] = value
    return chosen


def _reader(path: Path, found: list[str], form: TaskFormat) -> Published:
    """Function that converts a row of this table to a task, whose key is the row's id or ""."""
    published = None if form.columns else _published(found, form.verifier)
    if published is not None:
        return published
    columns = _columns(path, found, form)

    def read(row: Mapping[str, Any], place: str) -> Task:
        fields = {name: column_of(row, column) for name, column in columns.items()}
        return _plain_task({name: value for name, value in fields.items() if value not in (None, "")}, place, form)

    return read


def _nested(form: TaskFormat) -> list[str]:
    named = (*form.columns.values(), *(name for names in FIELDS.values() for name in names))
    return list(dict.fromkeys(name for name in named if "." in name))


def column_of(row: Any, column: str) -> Any:
    """Value of a column; `a.b` is key b of object a, which may be JSON text, unless a column has that name."""
    if not isinstance(row, Mapping):
        return None
    if column in row or "." not in column:
        return row.get(column)
    name, _, rest = column.partition(".")
    inner = row.get(name)
    if isinstance(inner, str) and inner.lstrip().startswith("{"):
        try:
            inner = read_json(inner, unique_object)
        except ValueError:
            return None
    return column_of(inner, rest)


def _published(found: Iterable[str], verifier: str) -> Published | None:
    """Reader for HumanEval's or MBPP's original columns, or None."""
    if verifier != "code":
        return None
    if set(HUMANEVAL_COLUMNS) <= set(found):
        return humaneval_task
    return _mbpp_task if set(MBPP_COLUMNS) <= set(found) else None


def _mbpp_task(row: Mapping[str, Any], place: str) -> Task:
    return mbpp_task(str(row.get("task_id", "")), row, place)


def _columns(path: Path, found: list[str], form: TaskFormat) -> dict[str, str]:
    unknown = sorted(set(form.columns) - set(FIELDS))
    if unknown:
        raise RequestError(f"--column {unknown[0]}=…: unknown field {unknown[0]!r}; choose one of {', '.join(FIELDS)}.")
    there = ", ".join(found)
    absent = next((column for column in form.columns.values() if column not in found), None)
    if absent is not None:
        raise RequestError(f"{path} has no column {absent!r}; it has {there}.")
    taken = set(form.columns.values())
    columns = {name: next((each for each in names if each in found and each not in taken), None) for name, names in FIELDS.items()}
    chosen = {name: column for name, column in {**columns, **form.columns}.items() if column is not None}
    for name in ("question", *(("answers",) if form.answered else ())):
        if name not in chosen:
            raise RequestError(
                f"{path} has no column for {name} (it has {there}): choose one with --column {name}=COLUMN, or "
                f"rename one to {' or '.join(FIELDS[name])}."
            )
    return chosen


def _plain_task(fields: dict[str, Any], place: str, form: TaskFormat) -> Task:
    question = _question(fields.get("question"))
    answers = _answers(fields.get("answers"), form.verifier)
    if form.verifier in OF_NUMBERS and len(answers) == 1 and MARK in answers[0]:
        task = gsm8k_task("", {"question": question, "answer": answers[0]}, place)
    else:
        known = {name: _number(fields[name]) for name in COUNTS if name in fields}
        known |= {name: fields[name] for name in ("formula", "proofs") if name in fields}
        known |= {"key": "", "question": question, "answers": list(answers), "provenance": _about(fields.get("provenance"))}
        task = task_of(known, place, form.answered)
    solution = fields.get("solution")
    proofs = {**task.proofs, "solution": solution} if isinstance(solution, str) and "solution" not in task.proofs else task.proofs
    return replace(task, key=_identity(fields.get("id")), proofs=proofs)


def _question(value: Any) -> str:
    """A text, or the user's question in chat messages given as a list or JSON text."""
    messages = isinstance(value, list) or (isinstance(value, str) and _MESSAGES.match(value) is not None)
    return question_of(read_messages(value)) if messages else value


def _answers(value: Any, verifier: str) -> tuple[str, ...]:
    """Accepted answers as texts; tests for code may be an object."""
    if verifier == "code":
        values = value if isinstance(value, list) else [value]
        value = [json.dumps(each, ensure_ascii=False) if isinstance(each, dict) else each for each in values if each is not None]
        return texts_of(value)
    return tuple(map(_final, texts_of(_listed(value) if isinstance(value, str) else value)))


def _final(answer: str) -> str:
    """Accepted answer without preceding reasoning."""
    return split_reasoning(answer)[1] or answer if "think" in answer.lower() else answer


def _listed(text: str) -> Any:
    """Texts of a JSON list, which represents several answers in a text cell, or calls as JSON; any other text unchanged.

    Raises:
        MalformedRow: the text is a list in Python notation, whose brackets no policy would write.
    """
    if text.lstrip().startswith(("[{", "{")):
        try:
            value = read_json(text)
        except ValueError:
            return text
        return value if is_calls(value) or (isinstance(value, dict) and "answer_start" in value) else text
    if not _LISTED.fullmatch(text):
        return text
    try:
        listed = read_json(text)
    except ValueError as error:
        raise MalformedRow(f'the answer {text!r:.60} is not a JSON list; write ["Ann", "A."], or ["…"] around a single answer') from error
    return listed if isinstance(listed, list) and all(isinstance(each, str) for each in listed) else text


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else whole(value)


def _about(value: Any) -> dict[str, Any]:
    """Additional data of a row: an object or its JSON text; anything else is stored under `info`."""
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            return {"info": value}
    return value if isinstance(value, dict) else {} if value is None else {"info": value}


def _identity(value: Any) -> str:
    """Row id as part of the task key; slashes, which would act as path separators, are replaced."""
    if value is None:
        return ""
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise MalformedRow(f"the id is {value!r:.60}, neither text nor an integer")
    return str(value).strip().replace("/", "-")
