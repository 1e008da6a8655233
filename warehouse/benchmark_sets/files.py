"""Rows of a benchmark set in a file of JSON, and anybody's own tasks in such a file.

A benchmark set that is half read would be another one under the same name, so a row that cannot be read is an error and no row is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warehouse.bounds import read_text_json
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.json_rows import rows_of
from warehouse.records import Task


def read_rows(path: Path, what: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The objects in a file, each with where it stands («row 3 of test.jsonl (line 5)»).

    Raises:
        RequestError: there is no such file, it is no JSON, or a row is no object; `what` says in the sentence what is missing.
    """
    if not path.is_file():
        raise RequestError(f"there is no file {path}: put {what} there, or name another file with --set source.path=FILE.")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    try:
        for number, row in enumerate(rows_of(path), start=1):
            place = f"row {number} of {path} (line {row.line})"
            if row.fault is not None:
                raise RequestError(f"{place}: {row.fault}; correct it.")
            if not isinstance(row.value, dict):
                raise RequestError(f"{place} is no object but {str(row.value)[:40]!r}; correct it.")
            rows.append((place, row.value))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}.") from error
    if not rows:
        raise RequestError(f"{path} holds no row.")
    return rows


def text_in(row: Mapping[str, Any], key: str, place: str) -> str:
    """The text under `key`. Raises RequestError where there is none."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{place} has no text under {key}; correct it.")
    return value


def texts_in(row: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    """The texts of the list under `key`. Raises RequestError where it is none."""
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{place} has no list of texts under {key}; correct it.")
    return tuple(value)


def read_tasks(path: Path) -> list[Task]:
    """The tasks in a file.

    Raises:
        RequestError: the file is missing or broken, a row has no question or no answers, or two have one key.
    """
    tasks: dict[str, Task] = {}
    for place, row in read_rows(path, "a task set as JSON lines {question, answers}"):
        task = task_of(row, place)
        if tasks.setdefault(task.key, task) is not task:
            raise RequestError(f"{place} has the key {task.key!r} of an earlier row; give each a key of its own.")
    return list(tasks.values())


def task_of(row: Mapping[str, Any], place: str, answered: bool = True) -> Task:
    """The task of a row `{question, answers}` and whatever more of a task's fields; only one that is not `answered` may accept nothing.

    Raises:
        RequestError: a field is missing or is not what it should be.
    """
    answers = (text_in(row, "answers", place),) if isinstance(row.get("answers"), str) else texts_in(row, "answers", place)
    if answered and not any(answer.strip() for answer in answers):
        raise RequestError(f"{place} accepts no answer; correct it.")
    question = text_in(row, "question", place)
    key = row.get("key", row.get("id"))
    if "\x00" in str(key):
        raise RequestError(f"{place}: the key {str(key)!r:.60} holds a NUL character, by which no row can be found; correct it.")
    return Task(
        key=digest([question, answers]) if key is None else str(key),
        environment=text_in(row, "environment", place) if "environment" in row else "search",
        question=question,
        answers=answers,
        formula=_formula(_inner(row, "formula", place, list), place),
        hops=_count(row, "hops", place),
        constraints=_count(row, "constraints", place),
        layers=_count(row, "layers", place),
        provenance={name: value for name, value in _inner(row, "provenance", place, dict).items() if name != "rollout"},
        proofs=_inner(row, "proofs", place, dict),
    )


def _inner(row: Mapping[str, Any], name: str, place: str, kind: type) -> Any:
    """What stands under `name`, as JSON or as its text, which is how a table's export writes it."""
    value = row.get(name)
    try:
        value = kind() if value is None else read_text_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RequestError(f"{place}: {name} is not JSON; correct it.") from error
    if not isinstance(value, kind):
        raise RequestError(f"{place}: {name} is no {'list' if kind is list else 'object'}; correct it.")
    return value


def _formula(triples: list[Any], place: str) -> tuple[tuple[str, str, str], ...]:
    if not all(isinstance(triple, list) and len(triple) == 3 and all(isinstance(part, str) for part in triple) for triple in triples):
        raise RequestError(f"{place}: formula holds something that is no triple of texts; correct it.")
    return tuple((subject, relation, value) for subject, relation, value in triples)


def _count(row: Mapping[str, Any], name: str, place: str) -> int:
    value = row.get(name, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(f"{place}: {name} is {value!r:.20}, which is no count; correct it.")
    return value
