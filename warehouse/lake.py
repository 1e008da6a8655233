"""The lake of one home: stores and reads records, and runs read-only SQL.

Every batch is one commit, every write is idempotent by key, and any number of processes may read and write concurrently.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, TypeVar, cast

import duckdb
import pyarrow as pa

from warehouse import rows
from warehouse.checksums import keep_digests
from warehouse.connections import (
    CATALOG,
    attach_statement,
    closed_on_error,
    connect_or_copy,
    connect_to_files,
    connect_to_read,
    cursor_in_lake,
)
from warehouse.errors import RequestError
from warehouse.queries import check_catalogue, first_paragraph, run_query
from warehouse.records import (
    Document,
    Example,
    Fact,
    Failure,
    Metric,
    Policy,
    Run,
    Score,
    Task,
    Trajectory,
)
from warehouse.schema import TABLE_OF, Record
from warehouse.storage import Place, Storage
from warehouse.transactions import all_writer_locks, commit
from warehouse.version import check_version, define
from warehouse.views import MACROS

R = TypeVar("R")
T = TypeVar("T")


class Lake:
    """The lake of `home`: `home/lake/catalog.sqlite` and `home/lake/data/`, or the configured storage. Thread-safe; a context manager.

    A missing lake is created, unless `read_only`. Raises RequestError for a missing lake with `read_only`, and for another version.

    Args:
        storage: location of catalogue and data for a new lake. None: the home, or the storage of an existing lake.
    """

    def __init__(self, home: Path, read_only: bool = False, storage: Storage | None = None) -> None:
        self.place = Place.of(Path(home), None if read_only else storage)
        self.read_only = read_only
        self._waited = threading.local()
        self._reading: duckdb.DuckDBPyConnection | None = None
        self._copied: TemporaryDirectory[str] | None = None
        self._wrote = False
        self._connection = self._open_to_read() if read_only else self._open_to_write()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the lake and record checksums of the files it wrote."""
        if self._wrote and self.place.storage.data is None:
            with suppress(OSError, duckdb.Error):  # full disk: the next writer records them
                keep_digests(self._connection, self.place)
        self._wrote = False
        self._connection.close()
        if self._reading is not None:
            self._reading.close()
        if self._copied is not None:
            self._copied.cleanup()

    @property
    def seconds(self) -> float:
        """Seconds this thread has spent storing and reading records."""
        return float(getattr(self._waited, "seconds", 0.0))

    def add(self, records: Iterable[Record]) -> None:
        """Store new records of any kinds in one commit; existing ones are unchanged."""
        groups = rows.grouped(records)
        if not groups:
            return

        def work(cursor: rows.Cursor) -> None:
            for kind, keyed in groups.items():
                table = TABLE_OF[kind]
                known = rows.existing_keys(cursor, table, list(keyed))
                rows.insert(cursor, table, [record for key, record in keyed.items() if key not in known])

        self.write(work)

    def replace(self, records: Iterable[Record]) -> None:
        """Store records in one commit, replacing those with the same keys."""
        groups = rows.grouped(records)

        def work(cursor: rows.Cursor) -> None:
            for kind, keyed in groups.items():
                rows.delete(cursor, TABLE_OF[kind], list(keyed))
                rows.insert(cursor, TABLE_OF[kind], list(keyed.values()))

        self.write(work)

    def remove(self, kind: type, keys: Iterable[Any]) -> None:
        """Remove the records with `keys` (as in `existing`) in one commit; earlier snapshots keep them."""
        table = TABLE_OF[kind]
        single = len(table.key) == 1
        wanted = [(key,) if single else tuple(key) for key in keys]
        if wanted:
            self.write(lambda cursor: rows.delete(cursor, table, wanted))

    def write(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run `work` with a cursor as one transaction; it may run again after a conflict. Raises RequestError if read-only."""
        if self.read_only:
            raise RequestError(f"The lake in {self.place.home} was opened read-only; open it without read_only to write.")
        self._wrote = True
        with self._timed():
            return commit(self._connection, self.place, work)

    def existing(self, kind: type, keys: Iterable[Any]) -> set[Any]:
        """Those of `keys` that are stored: plain values if the kind has one key column (`id`, `key`), else tuples."""
        table = TABLE_OF[kind]
        single = len(table.key) == 1
        wanted = [(key,) if single else tuple(key) for key in keys]
        found = self._with_cursor(lambda cursor: rows.existing_keys(cursor, table, wanted))
        return {key[0] for key in found} if single else set(found)

    def read(self, kind: type[R], where: str = "TRUE", parameters: Sequence[Any] = (), at: int | None = None) -> list[R]:
        """Records of one kind that satisfy the SQL condition `where`, ordered by key; `at` reads an earlier snapshot."""
        version = "" if at is None else f"AT (VERSION => {int(at)})"
        table = TABLE_OF[kind]
        return self._with_cursor(lambda cursor: cast("list[R]", rows.select(cursor, table, where, parameters, version)))

    def tasks(self, split: str | None = None, at: int | None = None) -> list[Task]:
        return self.read(Task, *_equal("split", split), at=at)

    def trajectories(self, where: str = "TRUE", parameters: Sequence[Any] = (), at: int | None = None) -> list[Trajectory]:
        """Trajectories with their turns; `where` refers to the columns of `trajectories`."""
        return self.read(Trajectory, where, parameters, at)

    def examples(self, kinds: Sequence[str] | None = None, at: int | None = None, turn: int | None = None) -> list[Example]:
        """Training examples of some kinds or all, and of one iteration or all."""
        chosen = {"list_contains(?, kind)": None if kinds is None else list(kinds), "wheel_turn = ?": turn}
        conditions = {condition: value for condition, value in chosen.items() if value is not None}
        return self.read(Example, " AND ".join(conditions) or "TRUE", list(conditions.values()), at=at)

    def documents(self, source: str | None = None, at: int | None = None) -> list[Document]:
        return self.read(Document, *_equal("source", source), at=at)

    def facts(self, source: str | None = None, at: int | None = None) -> list[Fact]:
        return self.read(Fact, *_equal("source", source), at=at)

    def runs(self, where: str = "TRUE", parameters: Sequence[Any] = ()) -> list[Run]:
        """Runs of stages, in their current state."""
        return self.read(Run, where, parameters)

    def policies(self, where: str = "TRUE", parameters: Sequence[Any] = ()) -> list[Policy]:
        return self.read(Policy, where, parameters)

    def scores(self, where: str = "TRUE", parameters: Sequence[Any] = (), at: int | None = None) -> list[Score]:
        return self.read(Score, where, parameters, at)

    def metrics(self, run_id: str | None = None) -> list[Metric]:
        return self.read(Metric, *_equal("run_id", run_id))

    def failures(self, stage: str | None = None) -> list[Failure]:
        """Records dropped or quarantined by one stage or all."""
        return self.read(Failure, *_equal("stage", stage))

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), at: int | None = None, timeout_seconds: float | None = None
    ) -> pa.Table:
        """Result of one SELECT, at the latest snapshot or `at`, on a connection restricted to the lake's data.

        Raises RequestError for any other statement, an error in the SQL, an unknown snapshot, or a timeout.
        """
        if at is None:
            return run_query(self._reader(), sql, parameters, timeout_seconds)
        try:
            connection = connect_to_read(self.place, at)
        except duckdb.InvalidInputException as error:
            raise RequestError(f"The lake in {self.place.home} has no snapshot {at}; the latest is {self.snapshot()}.") from error
        with connection:
            return run_query(connection, sql, parameters, timeout_seconds)

    def snapshot(self) -> int:
        sql = f"SELECT id FROM ducklake_current_snapshot('{CATALOG}')"
        return self._with_cursor(lambda cursor: int(cursor.execute(sql).fetchall()[0][0]))

    def _with_cursor(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        with self._timed(), cursor_in_lake(self._connection) as cursor:
            cursor.begin()
            try:
                return work(cursor)
            finally:
                cursor.rollback()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited.seconds = self.seconds + time.perf_counter() - began

    def _reader(self) -> duckdb.DuckDBPyConnection:
        if self.read_only:
            return self._connection
        if self._reading is None:
            self._reading = connect_to_read(self.place)
        return self._reading

    def _open_to_read(self) -> duckdb.DuckDBPyConnection:
        if self.place.storage.catalogue is None and not self.place.catalogue.exists():
            raise RequestError(f"There is no lake in {self.place.home}: give the --home of a run that has started.")
        try:
            connection, self.place, self._copied = connect_or_copy(self.place, connect_to_read)
        except duckdb.Error as error:
            raise self._unreachable(error) from error
        try:
            with closed_on_error(connection), cursor_in_lake(connection) as cursor:
                check_catalogue(cursor, str(self.place.home))
                check_version(cursor, str(self.place.home))
        except duckdb.Error as error:  # catalogue reachable, data not
            raise self._unreachable(error) from error
        return connection

    def _open_to_write(self) -> duckdb.DuckDBPyConnection:
        (self.place.folder if self.place.storage.data else self.place.data).mkdir(parents=True, exist_ok=True)
        try:
            connection = connect_to_files(self.place)
        except duckdb.Error as error:
            raise self._unreachable(error) from error
        with closed_on_error(connection):
            with all_writer_locks(connection, self.place):
                connection.execute(attach_statement(self.place, read_only=False))
            check_catalogue(connection, str(self.place.home))
            commit(connection, self.place, lambda cursor: define(cursor, str(self.place.home)))
        return connection

    def _unreachable(self, error: duckdb.Error) -> RequestError:
        return RequestError(f"The lake in {self.place.home} cannot be reached: {first_paragraph(error)}")


def _equal(column: str, value: str | None) -> tuple[str, list[Any]]:
    return ("TRUE", []) if value is None else (f'"{column}" = ?', [value])


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table, view or macro (`kind`), or one of its columns (with `column` and `type`)."""

    name: str
    kind: str
    column: str | None
    type: str | None
    comment: str


_RELATIONS = f"""
SELECT table_name AS name, 'table' AS kind, comment FROM duckdb_tables() WHERE database_name = '{CATALOG}'
UNION ALL
SELECT view_name, 'view', comment FROM duckdb_views() WHERE database_name = '{CATALOG}'
ORDER BY kind, name
"""
_COLUMNS = f"""
SELECT table_name AS name, column_name AS "column", data_type AS type, coalesce(comment, '') AS comment
FROM duckdb_columns() WHERE database_name = '{CATALOG}' ORDER BY name, column_index
"""


def describe(lake: Lake) -> list[CatalogEntry]:
    """All tables and views, each followed by its columns; then the macros."""
    columns: dict[str, list[dict[str, str]]] = {}
    for column in lake.query(_COLUMNS).to_pylist():
        columns.setdefault(column["name"], []).append(column)
    entries = []
    for relation in lake.query(_RELATIONS).to_pylist():
        name, kind = relation["name"], relation["kind"]
        entries.append(CatalogEntry(name, kind, None, None, relation["comment"] or ""))
        entries += [CatalogEntry(name, kind, column["column"], column["type"], column["comment"]) for column in columns.get(name, ())]
    return entries + [CatalogEntry(macro.signature, "macro", None, None, macro.comment) for macro in MACROS.values()]
