"""DuckDB connections to a lake, and their extensions.

Extensions are loaded from an installed copy, else from their Python packages, else from DuckDB's servers; an error lists every failed step.

A SQLite catalogue uses WAL mode with a busy timeout, so readers work while another process writes. The data path is set at every attach and
overrides the stored one, so a home can be moved or copied. Rows are never inlined into the catalogue: DuckLake fails there on text with a
NUL in a list, and on JSON in PostgreSQL.
"""

from __future__ import annotations

import importlib.resources
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from warehouse.account import ensure_home
from warehouse.errors import first_line
from warehouse.storage import Place, quoted

EXTENSIONS = ("ducklake", "sqlite_scanner")
"""Extensions for DuckLake with a SQLite catalogue and local data."""
CATALOG = "lake"
BUSY_TIMEOUT_MS = 10_000
LOCKS = "lake_locks"
"""Name of the second attachment of a PostgreSQL catalogue, used for locks."""
_LOCK_NUMBER = 0x666C7977
"""Advisory lock number of all writers."""
_checked: set[str] = set()
"""Extensions whose signatures this process has verified."""


class ExtensionError(RuntimeError):
    """An extension could not be loaded."""


def attach_statement(place: Place, read_only: bool, at: int | None = None) -> str:
    """ATTACH statement for the lake at `place`, at the latest snapshot or `at`."""
    remote = place.storage.catalogue
    options = [f"DATA_PATH {quoted(place.data_path)}", "OVERRIDE_DATA_PATH true", "DATA_INLINING_ROW_LIMIT 0"]
    options += ["META_JOURNAL_MODE 'WAL'", f"META_BUSY_TIMEOUT {BUSY_TIMEOUT_MS}"] if remote is None else []
    options += ["READ_ONLY"] if read_only else []
    options += [] if at is None else [f"SNAPSHOT_VERSION {int(at)}"]
    address = f"ducklake:{remote or f'sqlite:{place.catalogue}'}"
    return f"ATTACH {quoted(address)} AS {CATALOG} ({', '.join(options)})"


def connect_to_files(place: Place) -> duckdb.DuckDBPyConnection:
    """A connection with access to the lake's files, without the lake attached."""
    connection = connect(place.storage.extensions)
    with closed_on_error(connection):
        secret = place.storage.secret()
        if secret is not None:
            connection.execute(secret)
        if place.storage.catalogue is not None:
            address = place.storage.catalogue.removeprefix("postgres:")
            connection.execute(f"ATTACH {quoted(address)} AS {LOCKS} (TYPE postgres, READ_ONLY)")
    return connection


def connect_to_read(place: Place, at: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection for user SQL: read-only, limited to the lake's data and half of the machine's memory, without temporary files.

    `queries.py` rejects functions that DuckDB's settings do not restrict.
    """
    connection = connect_unlocked(place, at)
    connection.execute(f"SET allowed_directories = [{quoted(place.data_path)}]")
    connection.execute("SET temp_directory = ''")
    connection.execute(f"SET memory_limit = '{most_memory()}B'")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def most_memory() -> int:
    """Bytes a query may use: half of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def connect_unlocked(place: Place, at: int | None = None) -> duckdb.DuckDBPyConnection:
    """An unrestricted reading connection, for internal statements only."""
    connection = connect_to_files(place)
    with closed_on_error(connection):
        connection.execute(attach_statement(place, read_only=True, at=at))
    return connection


def connect_or_copy(
    place: Place, connect: Callable[[Place], duckdb.DuckDBPyConnection]
) -> tuple[duckdb.DuckDBPyConnection, Place, TemporaryDirectory[str] | None]:
    """A reading connection, its place, and the temporary folder of a copied catalogue, if any.

    SQLite cannot read a catalogue in a folder without write access, so a copy is read instead.
    """
    try:
        return connect(place), place, None
    except duckdb.Error:
        if place.storage.catalogue is not None or os.access(place.folder, os.W_OK):
            raise
    copied = TemporaryDirectory(prefix="flywheel-catalogue-")
    for name in (place.catalogue.name, f"{place.catalogue.name}-wal"):
        if (place.folder / name).exists():
            shutil.copyfile(place.folder / name, Path(copied.name, name))
    there = replace(place, copy=Path(copied.name, place.catalogue.name))
    return connect(there), there, copied


@contextmanager
def closed_on_error(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Close `connection` if the block fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def cursor_in_lake(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor for one unit of work, with the lake as default catalogue."""
    cursor = connection.cursor()
    cursor.execute(f"USE {CATALOG}")
    return cursor


def try_shared_lock(cursor: duckdb.DuckDBPyConnection) -> bool:
    """Try to take the lock shared by writers on other machines; it is held until the transaction of `cursor` ends."""
    asked = f"SELECT pg_try_advisory_xact_lock({_LOCK_NUMBER})::text AS taken"
    return cursor.execute(f"FROM postgres_query('{LOCKS}', {quoted(asked)})").fetchall() == [("true",)]


def connect(names: Sequence[str] = EXTENSIONS) -> duckdb.DuckDBPyConnection:
    """An in-memory connection with the extensions loaded.

    Verifying extension signatures takes 0.2 seconds, so later connections of this process skip it.
    """
    ensure_home()
    connection = duckdb.connect(config={"allow_unsigned_extensions": _checked.issuperset(names)})
    with closed_on_error(connection):
        load_extensions(connection, names)
    _checked.update(names)
    return connection


def load_extensions(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
    """Load extensions into `connection`. Raises ExtensionError, which lists every failed step."""
    for name in names:
        _load(connection, name)


def _load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    failures = []
    for step, find in _STEPS:
        try:
            connection.execute(f"LOAD {find(connection, name)}")
            return
        except (duckdb.Error, ImportError, OSError, LookupError) as error:
            failures.append(f"{step}: {first_line(error)}")
    raise ExtensionError(
        f"DuckDB's extension {name} could not be loaded ({'; '.join(failures)}). "
        f"Install the package duckdb-extension-{name.replace('_', '-')} in the version of duckdb ({duckdb.__version__})."
    )


def _find_installed(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    """Name of an installed extension; LOAD of a missing one would use the network."""
    installed = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE installed").fetchall()
    if (name,) not in installed:
        raise LookupError("not found")
    return name


def _install_from_package(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    importer = importlib.import_module("duckdb_extensions")
    importer.import_extension(name, force_install=True, con=connection)
    return name


def _find_in_package(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    folder = importlib.resources.files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
    return quoted(str(folder / f"{name}.duckdb_extension"))


def _install_from_network(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    connection.execute(f"FORCE INSTALL {name}")
    return name


_STEPS: tuple[tuple[str, Callable[[duckdb.DuckDBPyConnection, str], str]], ...] = (
    ("installed", _find_installed),
    ("package", _install_from_package),
    ("file of the package", _find_in_package),
    ("network", _install_from_network),
)
"""Ways to find an extension, tried in order; each returns the argument of LOAD."""


def how_to_attach(home: Path) -> str:
    """SQL that attaches the lake in `home` read-only in any DuckDB client of the same version.

    Data in S3 requires a secret in that client before the ATTACH.
    """
    place = Place.of(home)
    lines = [f"LOAD {name};" for name in place.storage.extensions]
    return "\n".join([*lines, f"{attach_statement(place, read_only=True)};", f"USE {CATALOG};"])
