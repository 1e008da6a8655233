"""Tasks in the released WebShaper form: JSON lines as they were released, or the same fields as a table."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from synth.datasets.tracing import source_of
from synth.formulas.webshaper import FIELDS, Unreadable, fields_of
from warehouse.datasets_out.dataset import UNTRACED, Dataset, Row
from warehouse.lake import Lake
from warehouse.records import Failure, Task

_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("formalization", pa.list_(pa.list_(pa.string()))),
        ("urls", pa.list_(pa.string())),
    ]
)
_COLUMNS = {
    "id": "id of the row, or key of the task",
    "question": "the question",
    "answer": "the answer; several joined by ` | `",
    "formalization": "triples of variables `V@`, constants `C@` and the target `?`",
    "urls": "pages that were read for it",
}


def tasks_to_write(lake: Lake, at: int) -> tuple[list[Task], list[Failure]]:
    """The tasks that have a row in this form, and why others with a formula have none."""
    tasks: list[Task] = []
    failures: list[Failure] = []
    for task in lake.tasks(at=at):
        try:
            if task.formula:
                fields_of(task)
                tasks.append(task)
        except Unreadable as error:
            failures.append(Failure("export", error.kind, str(error), {"key": task.key}))
    return tasks, failures


def webshaper_dataset(lake: Lake, at: int) -> Dataset:
    """The rows with the released form's own fields; what else an imported row had is in the JSON lines alone."""
    tasks, failures = tasks_to_write(lake, at)
    return Dataset(
        kind="webshaper",
        about="Questions with their formalization, in the form that WebShaper was released in (arXiv 2507.15061).",
        schema=_SCHEMA,
        columns=_COLUMNS,
        splits={"train": [_row(task) for task in tasks]},
        sources=Counter(source_of(task) or UNTRACED for task in tasks),
        filters=["tasks with a formula that this form can hold"],
        snapshot=at,
        failures=failures,
    )


def _row(task: Task) -> Row:
    fields = fields_of(task)
    return {name: fields.get(name, [] if name == "urls" else task.key if name == "id" else None) for name in FIELDS}
