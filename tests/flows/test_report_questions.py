"""The report's drawings of formulas, and the shapes of the graphs behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.report import build_report
from flows.report import questions as report_questions
from flows.report.questions import DRAWN, MOST_TRIPLES, DrawnQuestion, question_plots, read_graphs, read_questions
from tests.flows.test_report import Page
from tests.flows.wheel_records import HOSTILE
from warehouse import Fact, Lake, Task

CHAIN = Task("chain", "search", "Who stars in Night Boat?", ("Ann",), (("C@Night Boat", "star", "?"),), provenance={"shape": "chain"})
AGAIN = Task("chain2", "search", "Who stars in Day Boat?", ("Ben",), (("C@Day Boat", "star", "?"),), provenance={"shape": "chain"})
GROWN = Task(
    "grown",
    "search",
    f"Who stars in the film by {HOSTILE}?",
    ("Ann",),
    (("V@x0", "star", "?"), ("V@x0", "director", f"C@%{{x}}{HOSTILE}")),
    hops=2,
    layers=2,
    provenance={"shape": "chain", "expanded_from": "chain"},
)
LARGE = Task("large", "search", "?", ("x",), tuple(("?", "star", f"C@{number}") for number in range(MOST_TRIPLES + 1)))
PLAIN = Task("plain", "search", "Where?", ("x",))
FACTS = (
    Fact("Night Boat", "star", "Ann", ("d",), "films"),
    Fact("Night Boat", "year", "1990", (), "films"),
    Fact("a", "b", "c", (), "other"),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("home")) as opened:
        opened.add([CHAIN, AGAIN, GROWN, LARGE, PLAIN, *FACTS])
        yield opened


@pytest.fixture(scope="module")
def questions(lake: Lake) -> tuple[DrawnQuestion, ...]:
    return read_questions(lake)


def test_a_question_of_each_kind_is_drawn(questions: tuple[DrawnQuestion, ...], tmp_path: Path) -> None:
    assert [(question.key, question.alike) for question in questions] == [("chain", 2), ("grown", 1)]
    assert questions[1].before == CHAIN.formula
    with Lake(tmp_path) as lake:
        lake.add([Task(f"k{hops:02}", "search", "?", ("x",), CHAIN.formula, hops=hops) for hops in range(1, DRAWN + 5)])
        assert [question.hops for question in read_questions(lake)] == list(range(1, DRAWN + 1)), "no more than a page can show"


def test_nodes_and_triples_are_placed_and_names_are_no_html_and_no_template(questions: tuple[DrawnQuestion, ...]) -> None:
    panel = question_plots(questions)[1]
    lines, relations, nodes = panel.figure["data"]
    assert panel.title == "chain, 2 hops, 2 layers"
    assert list(relations["text"]) == ["← star", "director →"]
    assert len(nodes["x"]) == 3 and len(lines["x"]) == 6
    assert list(nodes["marker"]["symbol"]) == ["star", "circle", "square"]
    target, film, director = nodes["marker"]["color"]
    assert panel.legend[-1].label == "new in the last expansion" and film == director == panel.legend[-1].colour != target
    (hovered,) = nodes["customdata"][2]
    assert hovered.startswith("% {x}&lt;/script&gt;") and "<" not in nodes["text"][2]


@pytest.mark.slow
def test_the_page_has_the_drawings_and_the_graphs(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(build_report(lake, tmp_path / "report.html").read_text())
    head, *rows = page.tables["The knowledge graphs"]
    cells = {name: values for name, *values in rows}
    assert head == ["", "films", "other"]
    assert cells["entities"] == ["3", "2"] and cells["hubs"][0].startswith("Night Boat")
    assert cells["facts that a document states"] == ["50.0 % of 2", "0.0 % of 1"]
    assert 'id="questions-1"' in page.text and HOSTILE not in page.text and json.dumps(HOSTILE) not in page.text
    monkeypatch.setattr(report_questions, "MOST_FACTS", 1)
    assert [shape is None for _, shape in read_graphs(lake)] == [True, False], "a graph that is too large is not read"
