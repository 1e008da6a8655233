"""Tasks as datasets for others: prompts for reinforcement learning, and rows in the released WebShaper form.

A prompt has its verifier, its answers and how hard it is. WebShaper rows are JSON lines as they were released, or the same fields in a
table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from eval.graders.verifiers import VERIFIERS
from eval.suites.tasks import suite_of
from synth.exporters.texts import source_of
from synth.formulas.triples import formula_digest
from synth.formulas.webshaper import FIELDS, SPLIT, Unreadable, fields_of
from synth.questions.decontamination import STAGE
from synth.questions.difficulty import Difficulty, by_difficulty, pass_rates
from synth.questions.splits import split_tasks
from warehouse.exporters.dataset import UNTRACED, Dataset, Row, by_split
from warehouse.lake import Lake
from warehouse.records import Failure, Task

IMPORTED = ("import", SPLIT)
"""The splits that tasks of foreign files have."""
_TEXT, _COUNT = pa.string(), pa.int64()
_Fields = dict[str, tuple[pa.DataType, str]]
"""The type of each column, and what it holds."""

_PROMPT_FIELDS: _Fields = {
    "key": (_TEXT, "stable key of the task"),
    "prompt": (pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)])), "the question as one message"),
    "answers": (pa.list_(_TEXT), "what is accepted"),
    "verifier": (
        pa.struct([("name", _TEXT), ("version", _TEXT)]),
        "name and version of the verifier that judges the last answer (`flywheel verify`)",
    ),
    "environment": (_TEXT, "what the tools act on"),
    "formula": (pa.list_(pa.list_(_TEXT)), "knowledge projections in the WebShaper form"),
    "formula_digest": (_TEXT, "digest of the canonical formula: equal for renamed and reordered copies"),
    "hops": (_COUNT, "documents that must be read"),
    "layers": (_COUNT, "longest way from the target to a leaf"),
    "constraints": (_COUNT, "constants of the formula"),
    "branching": (_COUNT, "most projections that meet in one unknown"),
    "judged": (_COUNT, "valid trajectories in the lake, of all policies"),
    "pass_rate": (pa.float64(), "share of them that succeeded; null where there is none"),
    "split": (_TEXT, "`train`, a suite, or the part of the split that was asked for"),
    "digest": (_TEXT, "digest of the content"),
}


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Split by a rule, with a share held out, instead of as stored; `verifier` is who judges tasks that name none."""

    rule: str | None = None
    held_out: float = 0.1
    verifier: str = "qa_em"


def rl_dataset(lake: Lake, at: int, options: PromptOptions) -> Dataset:
    """All tasks but those of evaluation suites as prompts, in the splits they are stored with; or those of no suite, split anew."""
    stored = lake.tasks(at=at)
    tasks = [task for task in stored if suite_of(task) is None]
    removed = _decontamination(lake, at)
    if suites := len(stored) - len(tasks):
        removed["of suites"] = suites
    filters: list[str] = []
    failures: list[Failure] = []
    if options.rule is not None:
        tasks, left_out = _of_no_suite(tasks)
        parts, failures = split_tasks(tasks, options.rule, options.held_out)
        removed |= left_out
        filters.append(f"split by {options.rule}, about {options.held_out} held out")
        chosen = [(split, task) for split, members in parts.items() for task in members]
    else:
        chosen = [(task.split, task) for task in tasks]
        filters.append("splits as stored")
    measured = by_difficulty(tasks, pass_rates(lake, at=at))
    return Dataset(
        kind="rl",
        about="Questions with proven answers for reinforcement learning with verifiable rewards.",
        schema=_schema(_PROMPT_FIELDS),
        columns={name: about for name, (_, about) in _PROMPT_FIELDS.items()},
        splits=by_split((split, _prompt_row(task, split, measured[task.key], options.verifier)) for split, task in chosen),
        sources=Counter(source_of(task) or UNTRACED for _, task in chosen),
        filters=filters,
        removed=removed,
        snapshot=at,
        failures=failures,
    )


def _of_no_suite(tasks: Sequence[Task]) -> tuple[list[Task], dict[str, int]]:
    """The tasks for training and those of foreign files, and how many others there are."""
    chosen = [task for task in tasks if task.is_trained_on or task.split in IMPORTED]
    return chosen, {"of the home's suites and gate": len(tasks) - len(chosen)} if len(chosen) < len(tasks) else {}


def _verifier_of(task: Task, default: str) -> Row:
    """Who judges a task, by name; the version of somebody's own code is known where that is, and not here."""
    name = task.provenance.get("verifier")
    name = name if isinstance(name, str) and name else default
    return {"name": name, "version": VERIFIERS[name].version if name in VERIFIERS else ""}


def _prompt_row(task: Task, split: str, difficulty: Difficulty, default: str) -> Row:
    return {
        "key": task.key,
        "prompt": [{"role": "user", "content": task.question}],
        "answers": list(task.answers),
        "verifier": _verifier_of(task, default),
        "environment": task.environment,
        "formula": [list(triple) for triple in task.formula],
        "formula_digest": formula_digest(task.formula) if task.formula else None,
        "hops": difficulty.hops,
        "layers": difficulty.layers,
        "constraints": difficulty.constraints,
        "branching": difficulty.branching,
        "judged": difficulty.measured.judged,
        "pass_rate": difficulty.measured.rate,
        "split": split,
        "digest": task.digest,
    }


def _decontamination(lake: Lake, at: int) -> dict[str, int]:
    """How many tasks decontamination has removed, by suite and reason, from the failures in the lake."""
    sql = f"SELECT item->>'suite' AS suite, kind, count(*) AS n FROM failures WHERE stage = '{STAGE}' GROUP BY ALL ORDER BY ALL"
    return {
        f"removed earlier for {row['kind'].replace('_', ' ')} with {row['suite']}": row["n"] for row in lake.query(sql, at=at).to_pylist()
    }


_WEBSHAPER_FIELDS: _Fields = {
    "id": (_TEXT, "id of the row, or key of the task"),
    "question": (_TEXT, "the question"),
    "answer": (_TEXT, "the answer; several joined by ` | `"),
    "formalization": (pa.list_(pa.list_(_TEXT)), "triples of variables `V@`, constants `C@` and the target `?`"),
    "urls": (pa.list_(_TEXT), "pages that were read for it"),
}


def tasks_to_write(lake: Lake, at: int) -> tuple[list[Task], list[Failure], dict[str, int]]:
    """The tasks of no suite that have a row in this form, why others with a formula have none, and how many the rest are.

    The form has no place for a split, so that a suite's task would be taken for one to train on.
    """
    tasks: list[Task] = []
    failures: list[Failure] = []
    chosen, left_out = _of_no_suite(lake.tasks(at=at))
    for task in chosen:
        try:
            if task.formula:
                fields_of(task)
                tasks.append(task)
        except Unreadable as error:
            failures.append(Failure("export", error.kind, str(error), {"key": task.key}))
    return tasks, failures, left_out


def webshaper_dataset(lake: Lake, at: int) -> Dataset:
    """The rows with the released form's own fields; what else an imported row had is in the JSON lines alone."""
    tasks, failures, left_out = tasks_to_write(lake, at)
    return Dataset(
        kind="webshaper",
        about="Questions with their formalization, in the form that WebShaper was released in (arXiv 2507.15061).",
        schema=_schema(_WEBSHAPER_FIELDS),
        columns={name: about for name, (_, about) in _WEBSHAPER_FIELDS.items()},
        splits={"train": [_webshaper_row(task) for task in tasks]},
        sources=Counter(source_of(task) or UNTRACED for task in tasks),
        filters=["tasks of no suite with a formula that this form can hold"],
        removed=left_out,
        snapshot=at,
        failures=failures,
    )


def _webshaper_row(task: Task) -> Row:
    fields = fields_of(task)
    return {name: fields.get(name, [] if name == "urls" else task.key if name == "id" else None) for name in FIELDS}


def _schema(fields: _Fields) -> pa.Schema:
    return pa.schema([(name, kind) for name, (kind, _) in fields.items()])
