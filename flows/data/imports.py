"""Bringing foreign data into a home: each format has a reader, and what it cannot read is quarantined with its reason.

A home needs no configuration for it: an import opens the lake alone, and makes one where there is none. A wheel may turn there later.
Importing the same file twice changes nothing, for every record has its key from its content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from synth.formulas.webshaper import read_rows, task_of
from warehouse import Failure, Lake, Task
from warehouse.errors import RequestError
from warehouse.importers.fireact import read_fireact
from warehouse.importers.inspect_logs import read_inspect
from warehouse.importers.openai import read_openai
from warehouse.importers.runs import ImportedRuns
from warehouse.importers.search_r1 import read_search_r1
from warehouse.importers.tau_bench import read_tau_bench
from warehouse.importers.verifiers import read_verifiers
from warehouse.importers.webdancer import read_webdancer
from warehouse.schema import TABLE_OF, Record


def _read_webshaper(path: Path) -> ImportedRuns:
    rows, failures = read_rows(path)
    return ImportedRuns(len(rows) + len(failures), tuple(map(task_of, rows)), tuple(failures))


FORMATS: dict[str, Callable[[Path], ImportedRuns]] = {
    "webshaper": _read_webshaper,
    "webdancer": read_webdancer,
    "fireact": read_fireact,
    "openai": read_openai,
    "inspect": read_inspect,
    "search-r1": read_search_r1,
    "tau-bench": read_tau_bench,
    "verifiers": read_verifiers,
}
"""The reader of each format."""


def import_file(form: str, path: Path, home: Path) -> dict[str, Any]:
    """Read `path` in the format `form` into the lake of `home`.

    Returns:
        `rows` in the file; `quarantined` rows and `reasons`, their number by kind; for each table how many records were read and how
        many of them are `new`.

    Raises:
        RequestError: an unknown format, no such file, or `home` is a folder of something else.
    """
    if form not in FORMATS:
        raise RequestError(f"there is no format {form!r} to import; choose one of {', '.join(sorted(FORMATS))}.")
    if not path.exists():
        raise RequestError(f"there is no file {path}; name the file to import.")
    _check_home(home)
    read = FORMATS[form](path)
    with Lake(home) as lake:
        records, conflicts = _without_conflicts(lake, read.records)
        figures = {table: _count(lake, kind, records) for table, kind in _kinds(records).items()}
        lake.add([*records, *read.failures, *conflicts])
    reasons = Counter(str(failure.kind) for failure in (*read.failures, *conflicts))
    return {"rows": read.rows, "quarantined": sum(reasons.values()), "reasons": dict(sorted(reasons.items())), **figures}


def _check_home(home: Path) -> None:
    """A home is new, empty, or holds a lake or a configuration already."""
    known = (home / "lake").is_dir() or (home / "config.json").is_file()
    if home.is_file() or (home.is_dir() and not known and any(home.iterdir())):
        raise RequestError(f"{home} is not empty and is no run's home; name an empty or new folder with --home.")


def _without_conflicts(lake: Lake, records: Sequence[Record]) -> tuple[list[Record], list[Failure]]:
    """The records less the tasks whose key has other content in the lake or the file: the first stays, the other is a failure."""
    keys = [record.key for record in records if isinstance(record, Task)]
    stored = {task.key: task for task in lake.read(Task, "list_contains(?, key)", [keys])} if keys else {}
    kept: list[Record] = []
    failures: list[Failure] = []
    for record in records:
        if isinstance(record, Task) and _differ(stored.setdefault(record.key, record), record):
            reason = f"task {record.key} is there already with other content"
            failures.append(Failure("import", "conflict", reason, {"key": record.key, "digest": record.digest}))
        else:
            kept.append(record)
    return kept, failures


def _differ(one: Task, other: Task) -> bool:
    return (one.digest, _content(one)) != (other.digest, _content(other))


def _content(task: Task) -> dict[str, Any]:
    """The provenance without the file and line that it was read from, for the same row can stand in two files."""
    return {name: value for name, value in task.provenance.items() if name != "place"}


def _kinds(records: Sequence[Record]) -> dict[str, type]:
    return {TABLE_OF[type(record)].name: type(record) for record in records}


def _count(lake: Lake, kind: type, records: Sequence[Record]) -> dict[str, int]:
    table = TABLE_OF[kind]
    keys = set(table.keys_of([record for record in records if isinstance(record, kind)]))
    plain = [key[0] if len(key) == 1 else key for key in keys]
    return {"read": len(keys), "new": len(keys) - len(lake.existing(kind, plain))}
