"""Every query of the SQL cookbook runs on a lake that holds something of everything, and has an answer on the page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from warehouse import Lake, Record, RequestError

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def cookbook() -> ModuleType:
    """The script that answers the page."""
    spec = importlib.util.spec_from_file_location("cookbook", DOCS / "cookbook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_thirty_queries_run_and_stand_with_their_answers(cookbook: ModuleType, lake: Lake, one_of_each: list[Record]) -> None:
    lake.add(one_of_each)
    page = cookbook.PAGE.read_text()
    assert 30 <= len(cookbook.queries(page)) == page.count("```text\n")
    answered = cookbook.answered(page, lake)
    assert cookbook.queries(answered) == cookbook.queries(page)
    assert cookbook.answered(answered, lake) == answered


def test_a_query_that_fails_is_not_passed_over(cookbook: ModuleType, lake: Lake) -> None:
    with pytest.raises(RequestError, match="no_such_table"):
        cookbook.answered("```sql\nFROM no_such_table\n```\n", lake)
