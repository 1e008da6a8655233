"""Loading of the DuckDB extensions that the lake stands on, from wherever this machine can get them.

An extension that is already installed comes first, then the Python package that carries it, then DuckDB's own servers.
Where all of them fail, the error says what each step answered.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import duckdb

EXTENSIONS = ("ducklake", "sqlite_scanner")
"""What a DuckLake over a SQLite catalogue with local data needs."""


class ExtensionError(RuntimeError):
    """No step could load an extension."""


_checked: set[str] = set()
"""The extensions that this process has loaded with their signatures checked."""


def connect(names: Sequence[str] = EXTENSIONS) -> duckdb.DuckDBPyConnection:
    """A connection of its own, in memory, with the extensions loaded.

    DuckDB checks the signature of an extension by hashing all of it, 0.2 seconds for both. One check a process is enough: later
    connections load the same files, and so may skip it.
    """
    connection = duckdb.connect(config={"allow_unsigned_extensions": _checked.issuperset(names)})
    try:
        load_extensions(connection, names)
    except BaseException:
        connection.close()
        raise
    _checked.update(names)
    return connection


def load_extensions(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
    """Loads extensions into `connection`; raises `ExtensionError` naming every step that failed and why."""
    for name in names:
        _load(connection, name)


def _load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    failures = []
    for step, install in _STEPS:
        try:
            install(connection, name)
            connection.execute(f"LOAD {name}")
            return
        except (duckdb.Error, ImportError, OSError, LookupError) as error:
            failures.append(f"{step}: {str(error).splitlines()[0]}")
    raise ExtensionError(
        f"DuckDB's extension {name} could not be loaded ({'; '.join(failures)}). "
        f"Install the package duckdb-extension-{name.replace('_', '-')} in the version of duckdb ({duckdb.__version__})."
    )


def _find_installed(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Passes where the extension is on this machine: LOAD would otherwise go to the network by itself."""
    installed = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE installed").fetchall()
    if (name,) not in installed:
        raise LookupError("not there")


def _install_from_package(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    importer = importlib.import_module("duckdb_extensions")
    importer.import_extension(name, force_install=True, con=connection)


def _install_from_network(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    connection.execute(f"FORCE INSTALL {name}")


_STEPS: tuple[tuple[str, Callable[[duckdb.DuckDBPyConnection, str], None]], ...] = (
    ("installed", _find_installed),
    ("package", _install_from_package),
    ("network", _install_from_network),
)
