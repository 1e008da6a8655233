"""Questions over a slice of a graph in several styles, and plans checked by the index and by a judge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from synth.fas.memory import QuestionStyle
from synth.fas.plans import PlanJudge, PlanSpec, build_plans
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Retrieve
from synth.teachers.readers import Readers
from tests.synth.scripted import ScriptedTeacher, verdict
from warehouse import Check, Document, Fact, Lake

STYLES = tuple(QuestionStyle)


@pytest.fixture(scope="module")
def films() -> KnowledgeGraph:
    """Three films: two stars each, a year, a director whom two share."""
    rows = [("Alpha", "1990", "Dan", ("Ann", "Bob")), ("Beta", "1994", "Dan", ("Ann", "Cid")), ("Gamma", "2001", "Eve", ("Cid", "Fay"))]
    facts: list[Fact] = []
    documents: list[Document] = []
    for title, year, director, stars in rows:
        values = [("year", year), ("director", director), *(("star", star) for star in stars)]
        facts += [Fact(title, relation, value, (f"d{title}",), "films") for relation, value in values]
        text = f"{title}: {', '.join(f'{relation} {value}' for relation, value in values)}."
        documents.append(Document(f"d{title}", title, text, "films"))
    return KnowledgeGraph(facts, documents, {title: "film" for title, *_ in rows})


def test_one_slice_carries_questions_of_every_style(films: KnowledgeGraph) -> None:
    wishes = PlanSpec(60, 4, 1, styles=STYLES)
    examples, failures = build_plans(films, wishes, 1, None)
    questions = " ".join(question for example in examples for question in example.questions)
    assert "number of star of Alpha?" in questions
    assert any("How many have Dan as director?" in failure.reason for failure in failures)  # no document has that title
    assert re.search(r"Sum up \w+: ", questions) and "? year of Alpha?" in questions
    assert {failure.kind for failure in failures} <= {"fas_plan_no_such_question", "fas_plan_no_document", "fas_plan_not_unique"}
    assert {failure.item["style"] for failure in failures if failure.kind == "fas_plan_no_such_question"} == {"multi_hop"}


@pytest.mark.slow
def test_both_checkers_are_recorded_and_their_agreement_is_a_view(graph: KnowledgeGraph, retrieve: Retrieve, tmp_path: Path) -> None:
    judge = PlanJudge(Readers(ScriptedTeacher(lambda asked: verdict("no" if "count" in asked else "yes"))))
    wishes = PlanSpec(60, 4, 3, styles=STYLES)
    examples, failures = build_plans(graph, wishes, 1, retrieve, judge=judge)
    alone = build_plans(graph, wishes, 1, retrieve)
    assert [example.id for example in examples] == [example.id for example in alone[0]]
    assert {check.checker for check in judge.checks} == {"index", "teacher"}
    kept = {example.id for example in examples}
    for check in judge.checks:
        if check.checker == "index":
            assert check.accepted == (check.sample in kept)
    with Lake(tmp_path) as lake:
        lake.add([*examples, *failures, *judge.checks])
        assert set(lake.read(Check)) == set(judge.checks)
        (row,) = lake.query("SELECT * FROM check_agreement").to_pylist()
    by_sample = {check.sample: check.accepted for check in judge.checks if check.checker == "teacher"}
    assert row["samples"] == len(by_sample)
    assert row["both_accepted"] == sum(sample in kept and accepted for sample, accepted in by_sample.items())
    assert row["agreement"] == pytest.approx((row["both_accepted"] + row["neither"]) / row["samples"])
    assert 0 < row["agreement"] < 1
