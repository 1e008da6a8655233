"""Imports into a home: foreign runs, your own tasks, and documents. Unreadable rows are quarantined with their reason.

An import needs no configuration: it opens the lake alone and creates it if missing. Importing a file twice changes nothing, since record
keys derive from the content or the row's id. A task's verifier, environment and split come from the command line, never from its row. A
task is admitted if its verifier accepts each accepted answer and rejects a wrong one. Training tasks that match a task of a suite are
quarantined.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval.graders.choice import JUDGE, find_verifier, grader_of
from eval.graders.code import read_tests
from eval.graders.verifiers import VERIFIERS, Grader
from eval.sandbox.sandbox import SandboxFault
from eval.suites.tasks import enter_suite
from eval.suites.validation import subject_of, why_not_proven
from flows.config import FlywheelConfig
from flows.data.decontamination import settings_of
from flows.data.formats import FORMATS, format_of
from flows.data.harbor import read_harbor, task_folders
from flows.data.repositories import read_swe_bench, why_not_solvable
from flows.home import Home, check_place
from flows.lakes import by_suite
from rl.envs.base import ENVIRONMENTS
from rl.rollouts.config import RolloutConfig
from rl.terminal import say
from synth.questions.decontamination import EvaluationIndex
from warehouse import TRAINED_SPLITS, Document, DocumentSplit, Failure, Lake, Score, Task, Trajectory
from warehouse.corpora.files import read_documents, read_pages
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.foreign import GUESSED, Delimiting, open_table
from warehouse.importers.tables import name_of
from warehouse.importers.tasks import TaskFormat, broken_row, names_in, read_tasks
from warehouse.json_text import read_json
from warehouse.schema import TABLE_OF, Record
from warehouse.storage import LOCAL

PLACE = "place"
"""Provenance key of the file and line that a task was read from."""


def import_runs(path: Path, home: Path, form: str | None = None) -> dict[str, Any]:
    """Import the runs of `path` into the lake of `home`, in the format `form` or the one detected.

    Returns:
        `format`; `rows` in the file; `quarantined` rows, their number per kind as `reasons`, and the `first_reason`; for each table the
        records `read` and how many of them are `new`; for trajectories also the number of `demonstrations`, which have no verdict.

    Raises:
        RequestError: An unknown format, no such file, or `home` is not a run's folder.
    """
    if form is not None and form not in FORMATS:
        raise RequestError(f"there is no import format {form!r}; choose one of {', '.join(sorted(FORMATS))}.")
    check_home(home)
    name = form or format_of(path)
    read = FORMATS[name].read(path)
    with lake_of(home) as lake:
        return {"format": name, **store(lake, read.rows, read.records, read.failures)}


def store(lake: Lake, rows: int, records: Sequence[Record], failures: Sequence[Failure]) -> dict[str, Any]:
    """Store records and failures read from `rows` rows in one commit. Returns the figures of `import_runs`."""
    named, unnamed = _without_nul(records)
    kept, conflicts = _without_conflicts(lake, named)
    figures = {table: _count(lake, kind, kept) for table, kind in _kinds(kept).items()}
    if demonstrations := _demonstrations(kept):
        figures["trajectories"]["demonstrations"] = demonstrations
    quarantined = [*failures, *unnamed, *conflicts]
    lake.add([*kept, *quarantined])
    reasons = Counter(str(failure.kind) for failure in quarantined)
    first = {"first_reason": quarantined[0].reason} if quarantined else {}
    return {"rows": rows, "quarantined": sum(reasons.values()), "reasons": dict(sorted(reasons.items())), **first, **figures}


def _demonstrations(records: Sequence[Record]) -> int:
    """Count the trajectories without a verdict, which the cold start may use as they are."""
    return len({one.id for one in records if isinstance(one, Trajectory) and one.outcome is None})


def lake_of(home: Path) -> Lake:
    """Open the lake of `home` at its configured location or inside the home, creating it if missing."""
    config = config_of(home)
    return Lake(home, storage=None if config is None or config.lake == LOCAL else config.lake)


def config_of(home: Path) -> FlywheelConfig | None:
    """Return the configuration of `home`, or None if it has none yet. Raise RequestError if it is damaged."""
    return Home(home).load() if Home(home).config_file.is_file() else None


def check_home(home: Path) -> None:
    """Raise RequestError unless `home` is new, empty, or holds a lake or a configuration."""
    check_place(home)
    known = (home / "lake").is_dir() or (home / "config.json").is_file()
    if home.is_file() or (home.is_dir() and not known and any(home.iterdir())):
        raise RequestError(f"{home} is not empty and not a run's home; choose an empty or new folder with --home.")


def _without_nul(records: Sequence[Record]) -> tuple[list[Record], list[Failure]]:
    """Drop records with a NUL in a name, which DuckLake cannot look up: views that join on it would fail for the whole home."""
    broken = {id(record): name for record in records for name in _names(record) if "\x00" in name}
    lost = {record.id for record in records if id(record) in broken and isinstance(record, Trajectory)}
    kept = [record for record in records if id(record) not in broken and not (isinstance(record, Score) and record.trajectory_id in lost)]
    reason = "its name, or that of its policy, suite or verifier, contains a NUL character"
    return kept, [Failure("import", "nul_in_name", reason, {"name": name}) for name in broken.values()]


def _names(record: Record) -> Iterable[str]:
    match record:
        case Task():
            return (record.key,)
        case Document():
            return (record.id,)
        case Trajectory():
            return (record.id, record.task_key, record.policy, record.suite or "")
        case Score():
            return (record.trajectory_id, record.verifier, record.version)
        case _:
            return ()


def _without_conflicts(lake: Lake, records: Sequence[Record]) -> tuple[list[Record], list[Failure]]:
    """Drop tasks and documents whose key has other content in the lake or earlier in the file."""
    stored = {**_stored(lake, Task, records), **_stored(lake, Document, records)}
    kept: list[Record] = []
    failures: list[Failure] = []
    for record in records:
        if isinstance(record, Task | Document) and _content(stored.setdefault(_identity(record), record)) != _content(record):
            failures.append(_conflict(record))
        else:
            kept.append(record)
    return kept, failures


def _stored(lake: Lake, kind: type[Task] | type[Document], records: Sequence[Record]) -> dict[tuple[type, str], Task | Document]:
    keys = [_identity(record)[1] for record in records if isinstance(record, kind)]
    (column,) = TABLE_OF[kind].key
    return {_identity(record): record for record in lake.read(kind, f"{column} IN (SELECT unnest(?))", [keys])} if keys else {}


def _identity(record: Task | Document) -> tuple[type, str]:
    return type(record), record.key if isinstance(record, Task) else record.id


def _content(record: Task | Document) -> Any:
    """Content that must agree. A task's file and line may differ, since two files can hold the same row."""
    if isinstance(record, Document):
        return [record.title, record.text, record.split]
    return [record.digest, {name: value for name, value in record.provenance.items() if name != PLACE}]


def _conflict(record: Task | Document) -> Failure:
    what, name = type(record).__name__.lower(), _identity(record)[1]
    item: dict[str, Any] = {"key": name, "digest": record.digest if isinstance(record, Task) else digest(record.text)}
    item |= record.provenance.get(PLACE, {}) if isinstance(record, Task) else {}
    reason = f"{what} {name} already exists with other content or for another split; --source NAME gives it its own key"
    return Failure("import", "conflict", reason, item)


def _kinds(records: Sequence[Record]) -> dict[str, type]:
    return {TABLE_OF[type(record)].name: type(record) for record in records}


def _count(lake: Lake, kind: type, records: Sequence[Record]) -> dict[str, int]:
    table = TABLE_OF[kind]
    keys = set(table.keys_of([record for record in records if isinstance(record, kind)]))
    plain = [key[0] if len(key) == 1 else key for key in keys]
    return {"read": len(keys), "new": len(keys) - len(lake.existing(kind, plain))}


_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class TaskImport:
    """Options of `flywheel import tasks`."""

    environment: str
    verifier: str
    split: str = "train"
    source: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    delimiting: Delimiting = GUESSED
    loop: str | None = None
    dialect: str | None = None
    tools: str | None = None
    """Names of the offered tools, separated by commas."""
    repositories: Path | None = None
    """Folder of the repositories that SWE-bench rows name."""


def import_tasks(path: Path, wanted: TaskImport, home: Path) -> dict[str, Any]:
    """Import the task set `path` into the lake of `home`.

    Returns:
        The figures of `import_runs`; for a suite also `training_tasks_met`, the number of stored training tasks that match one of its
        tasks.

    Raises:
        RequestError: Something named does not exist or cannot be read; nothing is written then.
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
        *_choices(wanted, config),
    )
    snapshots, folders = Home(home).repositories, task_folders(path)
    over_snapshots = wanted.repositories is not None or bool(folders)
    if wanted.repositories is not None:
        read = read_swe_bench(path, form, wanted.repositories, snapshots)
    elif folders:
        read = read_harbor(folders, form, snapshots)
    else:
        read = read_tasks(path, form)
    given = [task for task in read.records if isinstance(task, Task)]
    proof = prove_solvable(given, lambda task: why_not_solvable(task, config, home)) if over_snapshots else prove(given, grader)
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
    """Import documents, from rows of a file or pages of a folder, into the lake of `home` for searches.

    Args:
        split: Searches that find them: those of `train`, of suites (`heldout`), or `all`.

    Raises:
        RequestError: There is nothing at `path`, it cannot be read, the split is unknown, or `home` is another kind of folder.
    """
    if split not in set(DocumentSplit):
        raise RequestError(f"--split {split!r} of documents must be one of {', '.join(DocumentSplit)}.")
    check_home(home)
    name = source or name_of(path)
    if not path.exists():
        raise RequestError(f"{path} does not exist; choose a folder of pages, or a file of rows id, title, text.")
    read = read_pages(path, name) if path.is_dir() else read_documents(path, name, delimiting)
    documents = [replace(document, id=f"{name}:{document.id}", split=DocumentSplit(split)) for document in read.documents]
    with lake_of(home) as lake:
        return {**store(lake, len(read.documents) + len(read.failures), documents, read.failures), **_read_as(path, delimiting)}


def _read_as(path: Path, given: Delimiting) -> dict[str, str]:
    head = open_table(path, given)[0] if path.is_file() else {"format": ""}
    if head["format"] != "delimited" or head["usual"]:
        return {}
    return {"read_as": f"{head['encoding'].removesuffix('-sig')}, delimiter {head['delimiter']!r}"}


def parse_columns(texts: Iterable[str]) -> dict[str, str]:
    """Parse `question=problem` into columns by field. Raise RequestError for another form."""
    columns: dict[str, str] = {}
    for text in texts:
        name, separator, column = text.partition("=")
        if not (name and separator and column):
            raise RequestError(f"--column {text!r} is not of the form FIELD=COLUMN; write for example --column question=problem.")
        columns[name] = column
    return columns


def parse_options(text: str | None) -> dict[str, Any]:
    """Parse verifier options. Raise RequestError if they are not a JSON object."""
    if text is None:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--options {text!r:.80} is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise RequestError(f"--options {text!r:.80} is not a JSON object; write for example --options '{{\"absolute\": 0.01}}'.")
    return options


def _check(wanted: TaskImport, config: FlywheelConfig | None) -> Grader | None:
    """Check that everything named exists. Return the verifier's grader, or None if it does not look at answers."""
    own = {} if config is None else config.evaluation.verifiers
    judges = config is not None and config.evaluation.judge is not None
    if wanted.verifier == JUDGE and not judges:
        raise RequestError("--verifier judge needs a home with a judge: set evaluation.judge when you create it.")
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
            f"--split {wanted.split!r} is neither train nor a valid suite name: use up to 40 lowercase letters, digits, '.', '_' and '-'."
        )
    try:
        ENVIRONMENTS.resolve_recorded(wanted.environment, {} if config is None else config.rollout.environments.listed)
    except RequestError as error:
        raise RequestError(f"--environment: {error}") from error
    return grader


def _choices(wanted: TaskImport, config: FlywheelConfig | None) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """What tasks choose for their rollout, and the loops and dialects that rows may name. Raise RequestError for others."""
    if not {"loop", "dialect", "tools"} & wanted.columns.keys() and not (wanted.loop or wanted.dialect or wanted.tools):
        return {}, {}
    from rl.rollouts.rollout import LOOPS  # imports Ray

    rollout = RolloutConfig() if config is None else config.rollout
    listed = {"loop": {*LOOPS.built_in, *rollout.loops}, "dialect": {"tags", "chat", *rollout.dialects}}
    chosen = {name: value for name in listed if (value := getattr(wanted, name))}
    for name, value in chosen.items():
        if value not in listed[name]:
            raise RequestError(
                f"--{name} {value!r:.80} is none of {', '.join(sorted(listed[name]))}; list your own under rollout.{name}s of the home."
            )
    return {**chosen, **({"tools": tools} if (tools := names_in(wanted.tools or "")) else {})}, listed


def _clear(tasks: Iterable[Task], index: EvaluationIndex) -> tuple[list[Task], list[Failure]]:
    kept: list[Task] = []
    failures: list[Failure] = []
    for task in tasks:
        met = index.objection(task)
        if met is None:
            kept.append(task)
        else:
            failures.append(replace(met, item={**met.item, **task.provenance[PLACE]}))
    return kept, failures


PROOF_SECONDS = 600.0
"""Time limit for starting proofs of code."""
_SAID_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Proof:
    """Admitted tasks, the failures of the others, and the number of admitted tasks that were parsed but not executed."""

    proven: list[Task]
    failures: list[Failure]
    unproven: int = 0


Fault = tuple[str, str] | None
"""Kind and reason of a failure."""


def prove(tasks: Sequence[Task], grader: Grader | None, seconds: float = PROOF_SECONDS) -> Proof:
    """Test the answers of every task with the grader; without one, admit all tasks.

    Tests of code that have not begun after `seconds`, or that lack a sandbox, leave their tasks unproven.
    """
    if grader is None:
        return Proof(list(tasks), [])
    others = [*tasks[1:], *tasks[:1]]
    if grader.name != "code":
        return _proof(tasks, [_fault(task, other, grader) for task, other in zip(tasks, others, strict=True)], 0)
    other_of = {task.key: other for task, other in zip(tasks, others, strict=True)}
    return _proven_by_running(tasks, lambda task: _unreadable(task) or _fault(task, other_of[task.key], grader), seconds, _unreadable)


def prove_solvable(tasks: Sequence[Task], why_not: Callable[[Task], str | None], seconds: float = PROOF_SECONDS) -> Proof:
    """Admit the tasks for which `why_not` returns None. Limits as in `prove`."""

    def fault(task: Task) -> Fault:
        why = why_not(task)
        return None if why is None else ("not_proven", f"it is not admitted: {why}")

    return _proven_by_running(tasks, fault, seconds)


def _proven_by_running(
    tasks: Sequence[Task], fault: Callable[[Task], Fault], seconds: float, late: Callable[[Task], Fault] = lambda task: None
) -> Proof:
    """Admit the tasks without a fault, found concurrently in sandboxes; `late` finds those of tasks whose turn comes after `seconds`."""
    end = time.monotonic() + seconds

    def find(task: Task) -> tuple[Fault, bool]:
        if time.monotonic() > end:
            unreadable = late(task)
            return unreadable, unreadable is None
        try:
            return fault(task), False
        except (RequestError, SandboxFault):  # no sandbox on this machine
            return None, True

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(_reported(pool.map(find, tasks), len(tasks)))
    return _proof(tasks, [one for one, _ in found], sum(skipped for _, skipped in found))


def _proof(tasks: Sequence[Task], faults: Sequence[Fault], unproven: int) -> Proof:
    kept = [task for task, fault in zip(tasks, faults, strict=True) if fault is None]
    failed = [(task, fault) for task, fault in zip(tasks, faults, strict=True) if fault is not None]
    failures = [replace(broken_row(**task.provenance[PLACE], reason=why, text=task.question), kind=kind) for task, (kind, why) in failed]
    return Proof(kept, failures, unproven)


def _fault(task: Task, other: Task, grader: Grader) -> Fault:
    try:
        why = why_not_proven(grader, subject_of(task, grader), subject_of(other, grader))
    except ValueError as error:
        return "not_judgeable", f"the verifier {grader.name} cannot judge it: {error}"
    return None if why is None else ("not_proven", f"the verifier {grader.name} cannot tell right from wrong there: {why}")


def _unreadable(task: Task) -> Fault:
    try:
        for tests in task.answers:
            read_tests(read_json(tests))
    except ValueError as error:
        return "not_judgeable", f"the verifier code cannot judge it: {error}"
    return None


def _reported(found: Iterator[tuple[Fault, bool]], count: int) -> Iterator[tuple[Fault, bool]]:
    said = time.monotonic()
    for number, one in enumerate(found, start=1):
        if time.monotonic() - said > _SAID_SECONDS:
            said = time.monotonic()
            say(f"proving tasks: {number} of {count}", to=sys.stderr)
        yield one
