"""The questions of an evaluation set from anywhere, to keep training clear of them: only what is asked is read."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.records import Task

ASKED = ("question", "prompt")
"""The fields in which evaluation sets keep what they ask."""
NAMED = ("id", "task_id", "key")


def read_evaluation_set(path: Path) -> list[Task]:
    """The questions in a JSON list or in JSON lines, packed by gzip or not, as tasks without answers.

    Raises:
        RequestError: no such file, no JSON, or a row without a question: an evaluation set that is half read would protect by half.
    """
    if not path.is_file():
        raise RequestError(f"there is no evaluation set {path}; name a file of JSON or JSON lines.")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise RequestError(f"{path} is neither JSON nor JSON lines: {error}.") from error
    tasks: dict[str, Task] = {}
    for number, row in enumerate(rows, start=1):
        task = _task(row, number, path)
        key = task.key if task.key not in tasks else f"{task.key} in row {number}"
        tasks[key] = replace(task, key=key)
    return list(tasks.values())


def _task(row: Any, number: int, path: Path) -> Task:
    fields = row if isinstance(row, dict) else {}
    question = next((fields[name] for name in ASKED if isinstance(fields.get(name), str)), None)
    if question is None:
        raise RequestError(f"row {number} of {path} has no text under {' or '.join(ASKED)}.")
    name = next((str(fields[name]) for name in NAMED if name in fields), digest(question))
    return Task(name, "evaluation", question, (), split=path.stem)
