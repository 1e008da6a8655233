"""Every query of the SQL cookbook runs on a lake that holds something of everything, and has an answer on the page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from warehouse import Lake, Record
from warehouse.views import MACROS, VIEWS

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


def test_thirty_queries_run_and_the_page_has_their_answers(cookbook: ModuleType, lake: Lake, one_of_each: list[Record]) -> None:
    lake.add(one_of_each)
    page = cookbook.PAGE.read_text()
    assert 30 <= len(cookbook.queries(page)) == page.count("```text\n")
    answered = cookbook.answered(page, lake)
    assert cookbook.queries(answered) == cookbook.queries(page)
    assert cookbook.answered(answered, lake) == answered


def test_every_view_and_macro_has_an_example(cookbook: ModuleType) -> None:
    queries = [query for page in (cookbook.PAGE, DOCS / "evaluation.md") for query in cookbook.queries(page.read_text())]
    assert [name for name in (*VIEWS, *MACROS) if not any(re.search(rf"\b{name}\b", query) for query in queries)] == []


def test_every_query_of_the_other_pages_runs(cookbook: ModuleType, lake: Lake) -> None:
    for page in (DOCS.parent / "README.md", *sorted(page for page in DOCS.glob("*.md") if page.name != "sql.md")):
        for block in cookbook.queries(page.read_text()):
            for query in filter(None, map(str.strip, re.sub(r"--.*", "", block).split(";"))):
                lake.query(query)
