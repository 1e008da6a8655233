"""The report's drawings of formulas, and the shapes of the graphs beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.report import build_report
from flows.report import questions as report_questions
from flows.report.questions import DRAWN, MOST_TRIPLES, DrawnQuestion, question_plots, read_graphs, read_questions
from flows.report.tables import graphs_table
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


def test_a_question_of_each_kind_is_drawn(questions: tuple[DrawnQuestion, ...]) -> None:
    assert [(question.key, question.alike) for question in questions] == [("chain", 2), ("grown", 1)]
    assert questions[1].before == CHAIN.formula


def test_every_node_and_triple_has_its_place_and_what_is_new_its_colour(questions: tuple[DrawnQuestion, ...]) -> None:
    plots = question_plots(questions)
    assert [entry.label for entry in plots.legend][-1] == "new in the last expansion"
    lines, relations, nodes = plots.panels[1].figure["data"]
    assert list(relations["text"]) == ["← star", "director →"]
    assert len(nodes["x"]) == 3 and len(lines["x"]) == 6
    assert list(nodes["marker"]["symbol"]) == ["star", "circle", "square"]
    target, film, director = nodes["marker"]["color"]
    assert film == director == plots.legend[-1].colour != target
    assert plots.panels[1].title == "chain, 2 hops, 2 layers"


def test_names_of_nodes_are_no_html_and_no_template(questions: tuple[DrawnQuestion, ...]) -> None:
    nodes = question_plots(questions).panels[1].figure["data"][2]
    (hovered,) = nodes["customdata"][2]
    assert hovered.startswith("% {x}&lt;/script&gt;") and "<" not in nodes["text"][2]


def test_graphs_stand_side_by_side(lake: Lake) -> None:
    table = graphs_table(read_graphs(lake))
    assert table is not None and table.head == ("", "films", "other")
    rows = {cells[0].text: [cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in cells[1:]] for cells in table.rows}
    assert rows["entities"] == ["3", "2"] and rows["hubs"][0].startswith("Night Boat")
    assert rows["facts that a document states"] == ["50.0 %", "0.0 %"]


def test_a_graph_that_is_too_large_is_named_and_not_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_questions, "MOST_FACTS", 1)
    table = graphs_table(read_graphs(lake))
    assert table is not None
    assert [cell.aside for cell in table.rows[0][1:]] == ["too large", ""]


def test_no_more_are_drawn_than_a_page_can_show(tmp_path: Path) -> None:
    many = [Task(f"k{hops:02}", "search", "?", ("x",), CHAIN.formula, hops=hops) for hops in range(1, DRAWN + 5)]
    with Lake(tmp_path) as lake:
        lake.add(many)
        assert [question.hops for question in read_questions(lake)] == list(range(1, DRAWN + 1))


@pytest.mark.slow
def test_they_are_a_section_of_the_page(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([CHAIN, GROWN, *FACTS])
        page = build_report(lake, tmp_path / "report.html").read_text()
        assert page == build_report(lake, tmp_path / "again.html").read_text()
    assert '<section id="questions">' in page and 'id="questions-1"' in page
    assert "Night Boat" in page and HOSTILE not in page
    assert json.dumps(HOSTILE) not in page
