"""SQL from people: one SELECT at a time, nothing written, no other file read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from warehouse import Document, Lake, RequestError, queries
from warehouse.connections import cursor_in_lake
from warehouse.exporters.dataset import export_table


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("home")) as lake:
        lake.add([Document(f"d{number}", "title", "text", "s") for number in range(30)])
        yield lake


WRITES = (
    "DELETE FROM documents", "DROP VIEW evaluations", "SET enable_external_access = true", "ATTACH 'other.db'", "",
    "SELECT 1; DELETE FROM documents", "EXPLAIN ANALYZE DELETE FROM documents", "WITH a AS (SELECT 1) INSERT INTO documents FROM a",
    "CALL ducklake_expire_snapshots('lake', versions => [1])",
)  # fmt: skip
FAILING = (
    "read_text('/etc/hostname')",
    "glob('/etc/*')",
    "'/etc/hostname'",
    "ducklake_expire_snapshots('lake', versions => [1])",
    "nothing",
)


@pytest.mark.parametrize("sql", WRITES)
def test_anything_but_one_select_is_refused(filled: Lake, sql: str) -> None:
    with pytest.raises(RequestError, match="single SELECT"):
        filled.query(sql)
    assert filled.query("SELECT count(*) AS n FROM documents").to_pylist() == [{"n": 30}]


@pytest.mark.parametrize("table", FAILING)
def test_a_query_that_fails_is_explained_in_one_line(filled: Lake, table: str) -> None:
    with pytest.raises(RequestError, match=r"^The query failed: .+") as raised:
        filled.query(f"SELECT * FROM {table}")
    assert "\n" not in str(raised.value)


def test_a_select_cannot_copy_data_out_of_or_into_the_lake(filled: Lake) -> None:
    files = {data: data.read_bytes() for data in filled.place.data.rglob("*.parquet")}
    assert files
    for data in files:
        with pytest.raises(RequestError, match="single SELECT"):
            filled.query(f"COPY (SELECT 1) TO '{data}'")
    assert {data: data.read_bytes() for data in files} == files


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM sqlite_scan('{other}', 'secrets')",
        "SELECT * FROM system.main.SQLITE_SCAN('{other}', 'secrets')",
        "WITH a AS (FROM sqlite_scan('{other}', 'secrets')) FROM documents WHERE id IN (SELECT word FROM a)",
        "DESCRIBE SELECT * FROM sqlite_scan('{other}', 'secrets')",
        "SELECT * FROM sqlite_query('__ducklake_metadata_lake', 'SELECT 1')",
        "SELECT * FROM query('SELECT * FROM sqlite_scan(''{other}'', ''secrets'')')",
        "SELECT * FROM sqlite_attach('{other}')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM sqlite_scan(''{other}'', ''secrets'')'))",
        "SELECT * FROM postgres_scan('dbname=x', 'public', 'x')",
        "SELECT * FROM read_blob('{other}')",
        "SELECT * FROM duckdb_secrets()",
    ],
)
def test_other_databases_cannot_be_read(filled: Lake, other: Path, sql: str) -> None:
    with pytest.raises(RequestError, match="may not call"):
        filled.query(sql.replace("{other}", str(other)))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT unnest(answers) AS answer FROM tasks", "FROM trained_on('nobody')", "SELECT snapshot_id FROM ducklake_snapshots('lake')",
        "PIVOT documents ON source IN ('s') USING count(*)", "SUMMARIZE documents", "SHOW TABLES",
    ],
)  # fmt: skip
def test_functions_that_read_the_lake_alone_may_be_called(filled: Lake, sql: str) -> None:
    filled.query(sql)


def test_a_query_that_takes_too_long_is_stopped(filled: Lake) -> None:
    with pytest.raises(RequestError, match=r"0\.2 seconds; raise --timeout"):
        filled.query("SELECT count(*) FROM range(1000000000000) a", timeout_seconds=0.2)
    assert filled.query("SELECT 1 AS n", timeout_seconds=60.0).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("__ducklake_metadata_lake.ducklake_data_file", "__ducklake_metadata_lake belongs to the catalogue"),
        ("LAKE_LOCKS.ducklake_data_file", "LAKE_LOCKS belongs to the catalogue"),
        ("pragma_database_list", "is about the connection"),  # where a catalogue in PostgreSQL stands with its password
        ("system.pg_catalog.pg_database", "is about the connection"),
    ],
)
def test_the_catalogue_and_what_is_attached_are_not_read(filled: Lake, table: str, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        filled.query(f"SELECT * FROM (SELECT * FROM {table})")


def test_rows_beyond_the_memory_for_a_query_are_refused(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "most_memory", lambda: 64 * 2**20)
    with pytest.raises(RequestError, match="needs more memory"):
        filled.query("SELECT range AS n FROM range(100000000)")
    assert filled.query("SELECT range AS n FROM range(1000000)").num_rows == 1_000_000


SWORDFISH = "SELECT word AS name FROM sqlite_scan('{other}', 'secrets')"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE secrets AS SELECT 'swordfish' AS word")
    return path


def lake_with(home: Path, *made: str) -> Path:
    """A home whose catalogue was changed by hand."""
    with Lake(home) as lake, cursor_in_lake(lake._connection) as cursor:
        for statement in made:
            cursor.execute(statement)
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        (f"CREATE VIEW inner_one AS {SWORDFISH}", "CREATE OR REPLACE VIEW evaluations AS FROM inner_one"),
        ("CREATE OR REPLACE VIEW evaluations AS SELECT * FROM '{other}.csv'",),
        (f"CREATE OR REPLACE MACRO trained_on(x) AS TABLE {SWORDFISH}", "CREATE OR REPLACE VIEW evaluations AS FROM trained_on('x')"),
    ],
    ids=["view of a view", "path", "macro"],
)
def test_a_view_or_macro_of_a_foreign_lake_reads_no_other_file(made: tuple[str, ...], tmp_path: Path, other: Path) -> None:
    (tmp_path / "other.sqlite.csv").write_text("name\nswordfish\n")
    home = lake_with(tmp_path / "home", *(statement.replace("{other}", str(other)) for statement in made))
    with Lake(home, read_only=True) as lake:
        for sql in ("FROM evaluations", "SELECT (SELECT max(name) FROM evaluations) AS w", "FROM (SUMMARIZE evaluations)"):
            with pytest.raises(RequestError, match="The query failed"):
                lake.query(sql)
        with pytest.raises(RequestError, match="The query failed"):
            export_table(lake, "evaluations", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (("DROP TABLE tasks", f"CREATE VIEW tasks AS {SWORDFISH}"), "a view in the place of the table tasks"),
        ((f"CREATE MACRO len(x) AS (SELECT max(name) FROM ({SWORDFISH}))",), "a macro len"),
        (("UPDATE __ducklake_metadata_lake.ducklake_data_file SET path = '../../x.parquet'",), "a data file at ../.."),
        (("UPDATE __ducklake_metadata_lake.ducklake_table SET path = 'http://x/', path_is_relative = 0",), "a table at http"),
    ],
)  # fmt: skip
def test_a_lake_that_this_program_does_not_make_is_not_opened(made: tuple[str, ...], told: str, tmp_path: Path, other: Path) -> None:
    home = lake_with(tmp_path / "home", *(statement.replace("{other}", str(other)) for statement in made))
    for read_only in (True, False):
        with pytest.raises(RequestError, match=told):
            Lake(home, read_only=read_only).close()
