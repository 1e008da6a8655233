"""What `flywheel sql` prints: values as people write them."""

from __future__ import annotations

import json

import duckdb
import pytest

from flows.cli.output import print_result


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("INTERVAL '1258 milliseconds'", "0:00:01.258"),
        ("INTERVAL '1 day' - INTERVAL '90 minutes'", "1 days -1:30:00.000"),
        ("NULL::INTERVAL", None),
    ],
)
def test_a_span_of_time_is_printed_as_text(sql: str, shown: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = duckdb.sql(f"SELECT {sql} AS took, 1 AS n").to_arrow_table()
    print_result(rows, "json")
    assert json.loads(capsys.readouterr().out) == [{"took": shown, "n": 1}]
