"""Prompts for reinforcement learning, each with its verifier, its answers and how hard it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from eval.outcome import verifier_of
from eval.suite_tasks import suite_of
from synth.datasets.tracing import source_of
from synth.formulas.triples import formula_digest
from synth.questions.decontamination import STAGE
from synth.questions.difficulty import Difficulty, by_difficulty, pass_rates
from synth.questions.splits import split_tasks
from warehouse.datasets_out.dataset import UNTRACED, Dataset, Row, by_split
from warehouse.lake import Lake
from warehouse.records import Failure, Task

_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("answers", pa.list_(pa.string())),
        ("verifier", pa.struct([("name", pa.string()), ("version", pa.string())])),
        ("environment", pa.string()),
        ("formula", pa.list_(pa.list_(pa.string()))),
        ("formula_digest", pa.string()),
        ("hops", pa.int64()),
        ("layers", pa.int64()),
        ("constraints", pa.int64()),
        ("branching", pa.int64()),
        ("judged", pa.int64()),
        ("pass_rate", pa.float64()),
        ("split", pa.string()),
        ("digest", pa.string()),
    ]
)
_COLUMNS = {
    "key": "stable key of the task",
    "prompt": "the question as one message",
    "answers": "what is accepted",
    "verifier": "name and version of the verifier that judges the last answer (`flywheel verify`)",
    "environment": "what the tools act on",
    "formula": "knowledge projections in the WebShaper form",
    "formula_digest": "digest of the canonical formula: equal for renamed and reordered copies",
    "hops": "documents that must be read",
    "layers": "longest way from the target to a leaf",
    "constraints": "constants of the formula",
    "branching": "most projections that meet in one unknown",
    "judged": "valid trajectories in the lake, of all policies",
    "pass_rate": "share of them that succeeded; null where there is none",
    "split": "`train`, a suite, or the part of the split that was asked for",
    "digest": "digest of the content",
}


@dataclass(frozen=True, slots=True)
class PromptWishes:
    """Split by a rule, with a share held out, instead of as stored."""

    rule: str | None = None
    held_out: float = 0.1


def rl_dataset(lake: Lake, at: int, wishes: PromptWishes) -> Dataset:
    """All tasks but those of evaluation suites as prompts, in the splits they are stored with or split anew."""
    tasks = [task for task in lake.tasks(at=at) if suite_of(task) is None]
    measured = by_difficulty(tasks, pass_rates(lake, at=at))
    filters = _decontamination(lake, at)
    failures: list[Failure] = []
    if wishes.rule is not None:
        parts, failures = split_tasks(tasks, wishes.rule, wishes.held_out)
        filters.append(f"split by {wishes.rule}, about {wishes.held_out} held out; {len(failures)} tasks belong to neither side")
        chosen = [(split, task) for split, members in parts.items() for task in members]
    else:
        chosen = [(task.split, task) for task in tasks]
        filters.append("splits as stored")
    return Dataset(
        kind="rl",
        about="Questions with proven answers for reinforcement learning with verifiable rewards.",
        schema=_SCHEMA,
        columns=_COLUMNS,
        splits=by_split((split, _row(task, split, measured[task.key])) for split, task in chosen),
        sources=Counter(source_of(task) or UNTRACED for _, task in chosen),
        filters=filters,
        snapshot=at,
        failures=failures,
    )


def _row(task: Task, split: str, difficulty: Difficulty) -> Row:
    verifier = verifier_of(task, "qa_em")
    return {
        "key": task.key,
        "prompt": [{"role": "user", "content": task.question}],
        "answers": list(task.answers),
        "verifier": {"name": verifier.name, "version": verifier.version},
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


def _decontamination(lake: Lake, at: int) -> list[str]:
    """What decontamination removed, by suite and reason, from the failures in the lake."""
    sql = f"SELECT item->>'suite' AS suite, kind, count(*) AS n FROM failures WHERE stage = '{STAGE}' GROUP BY ALL ORDER BY ALL"
    return [f"{row['n']} removed for {row['kind'].replace('_', ' ')} with {row['suite']}" for row in lake.query(sql, at=at).to_pylist()]
