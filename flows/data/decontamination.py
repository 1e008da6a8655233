"""`flywheel decontaminate`: remove training data that matches an evaluation set from the lake.

`failures` records each removal with the suite and task that it matched; earlier snapshots keep the data. Synthesis decontaminates its own
questions; this covers other data, and evaluation sets added later.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.config import FlywheelConfig
from flows.context import open_context
from flows.home import Home
from flows.lakes import by_suite, open_to_keep
from synth.questions.decontamination import STAGE, Contamination, DecontaminationConfig, EvaluationIndex
from warehouse import Example, Lake, Task

Rows = list[dict[str, Any]]


def decontaminate_home(home: Path, against: Mapping[str, Path]) -> Rows:
    """Decontaminate the lake of `home`, with or without a configuration (imports alone create none).

    Raises:
        RequestError: There is no lake, a set of `against` cannot be read, or another process uses the home.
    """
    if Home(home).config_file.is_file():
        with open_context(home) as context:
            return decontaminate(context.lake, context.config, against)
    with open_to_keep(home) as lake:
        return decontaminate(lake, None, against)


def decontaminate(lake: Lake, config: FlywheelConfig | None, against: Mapping[str, Path]) -> Rows:
    """Remove what matches a suite of `config`, a suite that was run here, or a set of `against`, and return the report.

    Raises:
        RequestError: A set of `against` cannot be read.
    """
    settings = settings_of(config)
    settings = DecontaminationConfig.model_validate({**settings.model_dump(), "against": {**settings.against, **against}})
    suites, trained = by_suite(lake.tasks(), config)
    index = EvaluationIndex.of(suites, settings)
    tasks, removed_tasks = index.clear_tasks(trained)
    examples = lake.examples()
    kept, removed_examples = index.clear_examples(examples)
    lake.add([*removed_tasks, *removed_examples])
    lake.remove(Task, {task.key for task in trained} - {task.key for task in tasks})
    lake.remove(Example, {example.id for example in examples} - {example.id for example in kept})
    return report(lake, index)


def settings_of(config: FlywheelConfig | None) -> DecontaminationConfig:
    """Return the decontamination settings of `config`, or the defaults without one."""
    return DecontaminationConfig() if config is None else config.synth.decontamination


def report(lake: Lake, index: EvaluationIndex) -> Rows:
    """Count the tasks of each evaluation set, and everything ever removed for it, by reason and in total."""
    counts = {(row["suite"], row["kind"]): row["n"] for row in _removed(lake)}
    sizes: dict[str, int] = {}
    for suite, _ in index.tasks.values():
        sizes[suite] = sizes.get(suite, 0) + 1
    rows: Rows = []
    for suite in sorted({*sizes, *(suite for suite, _ in counts)}):
        removed = {kind.value: counts.get((suite, kind.value), 0) for kind in Contamination}
        rows.append({"suite": suite, "tasks": sizes.get(suite), **removed, "removed": sum(removed.values())})
    return rows


def _removed(lake: Lake) -> Rows:
    sql = f"SELECT item->>'suite' AS suite, kind, count(*) AS n FROM failures WHERE stage = '{STAGE}' GROUP BY ALL ORDER BY ALL"
    return lake.query(sql).to_pylist()
