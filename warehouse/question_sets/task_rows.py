"""Tasks as JSON lines: those that `flywheel export tasks --to FILE.jsonl` writes, or plain rows `{question, answers}` of anybody's.

A row may also have `key` (or `id`), `environment`, `hops`, `constraints`, `layers`, `formula`, `provenance` and `proofs`; what it lacks
is as in a task without it. Rows come from outside: what they say of how they are rolled out, which could name code, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.question_sets.rows import read_rows, text_in, texts_in
from warehouse.records import Task


def read_tasks(path: Path) -> list[Task]:
    """The tasks in a file.

    Raises:
        RequestError: the file is missing or broken, a row has no question or no answers, or two have one key.
    """
    tasks: dict[str, Task] = {}
    for place, row in read_rows(path, "a task set as JSON lines {question, answers}"):
        task = _task(row, place)
        if tasks.setdefault(task.key, task) is not task:
            raise RequestError(f"{place} has the key {task.key!r} of an earlier row; give each a key of its own.")
    return list(tasks.values())


def _task(row: Mapping[str, Any], place: str) -> Task:
    answers = (text_in(row, "answers", place),) if isinstance(row.get("answers"), str) else texts_in(row, "answers", place)
    if not any(answer.strip() for answer in answers):
        raise RequestError(f"{place} accepts no answer; correct it.")
    question = text_in(row, "question", place)
    key = row.get("key", row.get("id"))
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
        value = kind() if value is None else json.loads(value) if isinstance(value, str) else value
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
