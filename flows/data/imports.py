"""Bringing foreign data into a home: each format has a reader, and what it cannot read is quarantined with its reason.

A home needs no configuration for it: an import opens the lake alone, and makes one where there is none. A wheel may turn there later.
Importing the same file twice changes nothing, for every record has its key from its content or from its row's id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.config import FlywheelConfig
from flows.home import Home, check_place
from synth.formulas.webshaper import read_rows, task_of
from warehouse import Document, Failure, Lake, Score, Task, Trajectory
from warehouse.digests import digest
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
from warehouse.storage import LOCAL


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
"""The reader of each format of foreign trajectories and questions."""
PLACE = "place"
"""Where a task's provenance has the file and the line that it was read from."""
OWN_DATA = ("tasks", "documents")
"""The formats that are read with options of their own: `flows/data/task_imports.py`."""


def import_file(form: str, path: Path, home: Path) -> dict[str, Any]:
    """Read `path` in the format `form` into the lake of `home`.

    Returns:
        `rows` in the file; `quarantined` rows, `reasons`, their number by kind, and the `first_reason`; for each table how many records
        were read and how many of them are `new`; of trajectories also how many are `demonstrations`, which came without a verdict.

    Raises:
        RequestError: an unknown format, no such file, or `home` is a folder of something else.
    """
    if form not in FORMATS:
        raise RequestError(f"there is no format {form!r} to import; choose one of {', '.join(sorted({*FORMATS, *OWN_DATA}))}.")
    if not path.exists():
        raise RequestError(f"there is no file {path}; name the file to import.")
    check_home(home)
    read = FORMATS[form](path)
    with lake_of(home) as lake:
        return store(lake, read.rows, read.records, read.failures)


def store(lake: Lake, rows: int, records: Sequence[Record], failures: Sequence[Failure]) -> dict[str, Any]:
    """Keep what was read of so many rows, in one commit; the figures are those of `import_file`."""
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
    """How many runs came without a verdict: cold starts take them as they are."""
    return len({one.id for one in records if isinstance(one, Trajectory) and one.outcome is None})


def lake_of(home: Path) -> Lake:
    """The lake of `home`, made where its configuration says, or in it, if there is none."""
    config = config_of(home)
    return Lake(home, storage=None if config is None or config.lake == LOCAL else config.lake)


def config_of(home: Path) -> FlywheelConfig | None:
    """The configuration of `home`; None where it has none yet. Raises RequestError where it is damaged."""
    return Home(home).load() if Home(home).config_file.is_file() else None


def check_home(home: Path) -> None:
    """A home is new, empty, or holds a lake or a configuration already. Raises RequestError where it is not, or cannot be."""
    check_place(home)
    known = (home / "lake").is_dir() or (home / "config.json").is_file()
    if home.is_file() or (home.is_dir() and not known and any(home.iterdir())):
        raise RequestError(f"{home} is not empty and is no run's home; name an empty or new folder with --home.")


def _without_nul(records: Sequence[Record]) -> tuple[list[Record], list[Failure]]:
    """The records less those with a NUL in a name, which DuckLake cannot look for: views that join by it would fail for the whole home."""
    broken = {id(record): name for record in records for name in _names(record) if "\x00" in name}
    lost = {record.id for record in records if id(record) in broken and isinstance(record, Trajectory)}
    kept = [record for record in records if id(record) not in broken and not (isinstance(record, Score) and record.trajectory_id in lost)]
    reason = "its name, or that of its policy, suite or verifier, holds a NUL character"
    return kept, [Failure("import", "nul_in_name", reason, {"name": name}) for name in broken.values()]


def _names(record: Record) -> Iterable[str]:
    """What other tables know a record by, or it them."""
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
    """The records less the tasks and documents whose key has other content in the lake or the file: the first stays."""
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
    """What the lake has under the keys of the records of one kind."""
    keys = [_identity(record)[1] for record in records if isinstance(record, kind)]
    (column,) = TABLE_OF[kind].key
    return {_identity(record): record for record in lake.read(kind, f"{column} IN (SELECT unnest(?))", [keys])} if keys else {}


def _identity(record: Task | Document) -> tuple[type, str]:
    return type(record), record.key if isinstance(record, Task) else record.id


def _content(record: Task | Document) -> Any:
    """What must agree; of a task's provenance all but its file and line, for the same row can stand in two files."""
    if isinstance(record, Document):
        return [record.title, record.text, record.split]
    return [record.digest, {name: value for name, value in record.provenance.items() if name != PLACE}]


def _conflict(record: Task | Document) -> Failure:
    what, name = type(record).__name__.lower(), _identity(record)[1]
    item: dict[str, Any] = {"key": name, "digest": record.digest if isinstance(record, Task) else digest(record.text)}
    item |= record.provenance.get(PLACE, {}) if isinstance(record, Task) else {}
    reason = f"{what} {name} is there already with other content or for another split; with --source NAME it has a key of its own"
    return Failure("import", "conflict", reason, item)


def _kinds(records: Sequence[Record]) -> dict[str, type]:
    return {TABLE_OF[type(record)].name: type(record) for record in records}


def _count(lake: Lake, kind: type, records: Sequence[Record]) -> dict[str, int]:
    table = TABLE_OF[kind]
    keys = set(table.keys_of([record for record in records if isinstance(record, kind)]))
    plain = [key[0] if len(key) == 1 else key for key in keys]
    return {"read": len(keys), "new": len(keys) - len(lake.existing(kind, plain))}
