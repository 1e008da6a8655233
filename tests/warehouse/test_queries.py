"""SQL from people: one SELECT at a time, nothing written, no other file read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from warehouse import Document, Lake, RequestError


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("home")) as lake:
        lake.add([Document(f"d{number}", "title", "text", "s") for number in range(30)])
        yield lake


WRITES = [
    "DELETE FROM documents",
    "INSERT INTO documents VALUES ('a')",
    "CREATE TABLE x (a INTEGER)",
    "DROP VIEW evaluations",
    "SET enable_external_access = true",
    "ATTACH 'other.db'",
    "SELECT 1; DELETE FROM documents",
    "EXPLAIN ANALYZE DELETE FROM documents",
    "WITH a AS (SELECT 1) INSERT INTO documents FROM a",
    "CALL ducklake_expire_snapshots('lake', versions => [1])",
    "",
]


@pytest.mark.parametrize("sql", WRITES)
def test_anything_but_one_select_is_refused(filled: Lake, sql: str) -> None:
    with pytest.raises(RequestError, match="Only one SELECT"):
        filled.query(sql)
    assert filled.query("SELECT count(*) AS n FROM documents").to_pylist() == [{"n": 30}]


def test_a_select_cannot_copy_data_out_of_or_into_the_lake(filled: Lake) -> None:
    for data in filled.place.data.rglob("*.parquet"):
        with pytest.raises(RequestError):
            filled.query(f"COPY (SELECT 1) TO '{data}'")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM ducklake_expire_snapshots('lake', versions => [1])",
        "SELECT * FROM ducklake_delete_orphaned_files('lake', cleanup_all => true)",
        "SELECT * FROM no_such_table",
        "SELEC",
    ],
)
def test_what_may_not_or_cannot_run_says_so_in_one_sentence(filled: Lake, sql: str) -> None:
    with pytest.raises(RequestError, match=r"^The query failed: .+") as raised:
        filled.query(sql)
    assert "\n" not in str(raised.value)


def test_values_are_parameters(filled: Lake) -> None:
    assert filled.query("SELECT id FROM documents WHERE id = ?", ["d7"]).to_pylist() == [{"id": "d7"}]
    assert filled.query("SELECT id FROM documents WHERE id = $id", {"id": "x' OR true --"}).to_pylist() == []


def test_helpful_statements_that_only_read_are_allowed(filled: Lake) -> None:
    assert {"tasks", "turns", "evaluations"} <= set(filled.query("SHOW TABLES").column("name").to_pylist())
    assert filled.query("DESCRIBE documents").num_rows == 5
    assert filled.query("FROM documents LIMIT 1").num_rows == 1


def test_a_query_sees_what_has_just_been_committed(filled: Lake, tmp_path: Path) -> None:
    with Lake(tmp_path) as lake, Lake(tmp_path, read_only=True) as reader:
        for number in range(3):
            lake.add([Document(f"d{number}", "t", "x", "s")])
            assert reader.query("SELECT count(*) AS n FROM documents").to_pylist() == [{"n": number + 1}]
            assert lake.query("SELECT count(*) AS n FROM documents").to_pylist() == [{"n": number + 1}]
