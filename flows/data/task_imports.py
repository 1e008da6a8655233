"""`flywheel import tasks` and `flywheel import documents`: somebody's own questions to train or be evaluated on, and what searches read.

Who judges a task, where it is played and which split it belongs to is said by whoever imports it and never by its row. Training tasks are
held against every suite that the home has; a task that meets one is quarantined, as is a row that cannot be read or judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval.graders.choice import JUDGE, find_verifier, grader_of
from eval.graders.verifiers import VERIFIERS, Grader
from eval.suites.tasks import enter_suite
from flows.config import FlywheelConfig
from flows.data.admission import prove
from flows.data.decontamination import by_suite, settings_of
from flows.data.imports import PLACE, check_home, config_of, lake_of, store
from rl.envs.base import ENVIRONMENTS
from synth.questions.decontamination import EvaluationIndex
from warehouse import TRAINED_SPLITS, DocumentSplit, Failure, Task
from warehouse.corpora.files import read_documents, read_pages
from warehouse.delimited import GUESSED, Delimiting, guess, is_delimited, usual_delimiter
from warehouse.errors import RequestError
from warehouse.importers.tables import name_of
from warehouse.importers.tasks import TaskFormat, read_tasks

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class TaskImport:
    """What the command line says of a task set: split, environment, verifier and its options, name, and columns by field."""

    environment: str
    verifier: str
    split: str = "train"
    source: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    delimiting: Delimiting = GUESSED


def import_tasks(path: Path, wanted: TaskImport, home: Path) -> dict[str, Any]:
    """Read the task set `path` into the lake of `home`.

    Returns:
        The figures of `import_file`; for a suite also `training_tasks_met`, how many training tasks of the lake meet one of its tasks.

    Raises:
        RequestError: something that is asked for does not exist or cannot be read; nothing is written then.
    """
    check_home(home)
    config = config_of(home)
    grader = _check(wanted, config)
    form = TaskFormat(
        wanted.source or name_of(path),
        wanted.environment,
        wanted.verifier,
        wanted.options,
        grader is not None or wanted.verifier == JUDGE,
        wanted.columns,
        wanted.delimiting,
    )
    read = read_tasks(path, form)
    proof = prove([task for task in read.records if isinstance(task, Task)], grader)
    tasks, failures = proof.proven, [*read.failures, *proof.failures]
    about = {**_read_as(path, form.delimiting), **({"unproven": proof.unproven} if proof.unproven else {})}
    with lake_of(home) as lake:
        suites, trained = by_suite(lake.tasks(), config)
        if wanted.split in TRAINED_SPLITS:
            clear, met = _clear(tasks, EvaluationIndex.of(suites, settings_of(config)))
            kept = [replace(task, split=wanted.split) for task in clear]
            return {**store(lake, read.rows, kept, [*failures, *met]), **about}
        entered = [enter_suite(task, wanted.split) for task in tasks]
        _, met = EvaluationIndex.of({wanted.split: entered}, settings_of(config)).clear_tasks(trained)
        return {**store(lake, read.rows, entered, failures), **about, "training_tasks_met": len(met)}


def import_documents(
    path: Path, home: Path, source: str | None = None, split: str = "all", delimiting: Delimiting = GUESSED
) -> dict[str, Any]:
    """Read documents, rows of a file or the pages of a folder, into the lake of `home`, where searches find them.

    Args:
        split: whose searches: those of `train`, of suites alone (`heldout`), or `all`.

    Raises:
        RequestError: there is nothing at `path`, it cannot be read, the split is none, or `home` is a folder of something else.
    """
    if split not in set(DocumentSplit):
        raise RequestError(f"--split {split!r} of documents is none of {', '.join(DocumentSplit)}.")
    check_home(home)
    name = source or name_of(path)
    if not path.exists():
        raise RequestError(f"there is nothing at {path}; name a folder of pages, or a file of rows id, title, text.")
    read = read_pages(path, name) if path.is_dir() else read_documents(path, name, delimiting)
    documents = [replace(document, id=f"{name}:{document.id}", split=DocumentSplit(split)) for document in read.documents]
    with lake_of(home) as lake:
        return {**store(lake, len(read.documents) + len(read.failures), documents, read.failures), **_read_as(path, delimiting)}


def _read_as(path: Path, given: Delimiting) -> dict[str, str]:
    """The delimiter and the encoding that a file was read with, where they are not the usual ones."""
    if not path.is_file() or not is_delimited(path):
        return {}
    form = guess(path, given)
    usual = form.encoding == "utf-8-sig" and form.delimiter == usual_delimiter(path)
    return {} if usual else {"read_as": f"{form.encoding.removesuffix('-sig')}, delimiter {form.delimiter!r}"}


def parse_columns(texts: Iterable[str]) -> dict[str, str]:
    """`question=problem` as a column by its field. Raises RequestError where one is not of that form."""
    columns: dict[str, str] = {}
    for text in texts:
        name, separator, column = text.partition("=")
        if not (name and separator and column):
            raise RequestError(f"--column {text!r} is not of the form FIELD=COLUMN; write for example --column question=problem.")
        columns[name] = column
    return columns


def parse_options(text: str | None) -> dict[str, Any]:
    """The options of a verifier. Raises RequestError where they are no JSON object."""
    if text is None:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--options {text!r:.80} is not JSON: {error}.") from error
    if not isinstance(options, dict):
        raise RequestError(f"--options {text!r:.80} is no JSON object; write for example --options '{{\"absolute\": 0.01}}'.")
    return options


def _check(wanted: TaskImport, config: FlywheelConfig | None) -> Grader | None:
    """That all that is asked for exists; the rule of the verifier, None where it looks at no answer."""
    own = {} if config is None else config.evaluation.verifiers
    judges = config is not None and config.evaluation.judge is not None
    if wanted.verifier == JUDGE and not judges:
        raise RequestError("--verifier judge is for a home that has one: set evaluation.judge when you make it.")
    if wanted.verifier not in (*VERIFIERS, JUDGE) and wanted.verifier not in own:
        known = ", ".join([*VERIFIERS, *([JUDGE] if judges else []), *own])
        raise RequestError(
            f"there is no verifier {wanted.verifier!r}; choose one of {known} with --verifier, or list your own under "
            "evaluation.verifiers of the home."
        )
    grader = grader_of(find_verifier(own.get(wanted.verifier, wanted.verifier)))
    options = grader.options if grader is not None else frozenset()
    if unknown := sorted(set(wanted.options) - options):
        has = ", ".join(sorted(options)) or "none"
        raise RequestError(f"--options: the verifier {wanted.verifier} has no option {unknown[0]!r}; it has {has}.")
    if wanted.split not in TRAINED_SPLITS and (not _NAME.fullmatch(wanted.split) or wanted.split == "import"):
        raise RequestError(
            f"--split {wanted.split!r} is neither train nor a name for a suite: take up to 40 small letters, digits, '.', '_' and '-'."
        )
    try:
        ENVIRONMENTS.resolve_recorded(wanted.environment, {} if config is None else config.rollout.environments.listed)
    except RequestError as error:
        raise RequestError(f"--environment: {error}") from error
    return grader


def _clear(tasks: Iterable[Task], index: EvaluationIndex) -> tuple[list[Task], list[Failure]]:
    """The tasks that meet no suite, and why the others may not be trained on, each with its file and line."""
    kept: list[Task] = []
    failures: list[Failure] = []
    for task in tasks:
        met = index.objection(task)
        if met is None:
            kept.append(task)
        else:
            failures.append(replace(met, item={**met.item, **task.provenance[PLACE]}))
    return kept, failures
