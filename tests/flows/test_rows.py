"""Rows as they are printed: no value lost or shifted, nothing obeyed by the terminal, every form readable by its own reader."""

from __future__ import annotations

import csv
import io
import json

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from flows.cli.output import print_result

HOSTILE = "a\x1b]0;title\x07b\u202ec\x9bd\r\u200be"
TWICE = "SELECT 'p1' AS policy, 0.5 AS s, 'p2' AS policy, 3 AS policy"


def printed(sql: str, form: str, capsys: pytest.CaptureFixture[str], most: int = 200) -> str:
    print_result(duckdb.sql(sql).to_arrow_table(), form, most)
    return capsys.readouterr().out


def test_columns_of_one_name_keep_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"policy": "p1", "s": 0.5, "policy_2": "p2", "policy_3": 3}
    assert json.loads(printed(TWICE, "json", capsys)) == [expected]
    assert json.loads(printed(TWICE, "jsonl", capsys)) == expected
    assert printed(TWICE, "csv", capsys) == "policy,s,policy_2,policy_3\np1,0.5,p2,3\n"
    assert printed(TWICE, "markdown", capsys).splitlines()[2] == "| p1 | 0.5 | p2 | 3 |"
    (row,) = [line for line in printed(TWICE, "table", capsys).splitlines() if "p1" in line]
    assert [each.strip() for each in row.strip("│").split("│")] == ["p1", "0.5", "p2", "3"]


def test_a_list_in_csv_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("SELECT ['Oslo, Norway', 'O''Neil'] AS answers, {'a': 1} AS about", "csv", capsys)
    (row,) = csv.DictReader(io.StringIO(text))
    assert json.loads(row["answers"]) == ["Oslo, Norway", "O'Neil"] and json.loads(row["about"]) == {"a": 1}


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_what_a_terminal_would_obey_is_shown(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(f"SELECT '{HOSTILE}' AS x", form, capsys)
    assert "a\\x1b]0;title\\x07b\\u202ec\\x9bd\\r\\u200be" in text
    assert not [one for one in text if one != "\n" and not one.isprintable()]
    assert json.loads(printed(f"SELECT '{HOSTILE}' AS x", "json", capsys)) == [{"x": HOSTILE}]


def test_a_table_says_what_it_leaves_out_and_never_cuts_an_identity(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    text = printed(f"SELECT range AS n, '{long}' AS task_key, '{long}' AS said FROM range(1234)", "table", capsys, 3)
    assert text.endswith("3 rows of 1,234; `--rows 0` shows all\n")
    assert long in text and "x" * 79 + "…" in text
    assert printed("SELECT range AS n FROM range(250)", "table", capsys, 0).endswith("250 rows\n")
    assert printed("SELECT 1 AS n", "table", capsys).endswith("1 row\n")
    assert len(json.loads(printed("SELECT range AS n FROM range(1234)", "json", capsys, 3))) == 1234


def test_parquet_is_what_arrow_reads(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_result(duckdb.sql(TWICE).to_arrow_table(), "parquet")
    read: pyarrow.Table = pyarrow.parquet.read_table(io.BytesIO(capfdbinary.readouterr().out))
    assert read.to_pylist() == [{"policy": "p1", "s": pytest.approx(0.5), "policy_2": "p2", "policy_3": 3}]
