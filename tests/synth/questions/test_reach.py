"""How much of a graph questions can reach: counted by hand where that can be done, and never less than questions do reach."""

from __future__ import annotations

from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.decontamination import TRAIN, split_of
from synth.questions.paths import MAX_SHARING, Reach, Retrieve, reach
from warehouse.records import Fact


def fact(subject: str, relation: str, value: str, stated: bool = True) -> Fact:
    return Fact(subject, relation, value, (f"d-{subject}",) if stated else ())


def test_names_lead_on_where_something_is_stated_of_them() -> None:
    chain = KnowledgeGraph((fact("a", "next", "b"), fact("b", "next", "c"), fact("c", "next", "d"), fact("d", "next", "e", stated=False)))
    assert reach(chain, hops=4) == Reach(3, 4, (3, 2, 1, 0)), "b, c, d; then c, d by way of a, b; then d"


def test_a_shared_value_leads_to_the_others_that_have_it() -> None:
    films = KnowledgeGraph((fact("x", "star", "Ann"), fact("y", "star", "Ann"), fact("x", "year", "1990"), fact("y", "year", "1991")))
    assert reach(films, hops=3) == Reach(4, 5, (3, 3, 3))
    apart = KnowledgeGraph((fact("x", "star", "Ann"), fact("y", "director", "Ann"), fact("x", "year", "1990"), fact("y", "year", "1991")))
    assert reach(apart, hops=2) == Reach(4, 5, (3, 0)), "another relation is another value"
    crowd = KnowledgeGraph([fact(f"x{number}", "genre", "Drama") for number in range(MAX_SHARING + 1)])
    assert reach(crowd, hops=2).answers == (1, 0), "what too many share leads nowhere"


def test_questions_reach_no_more_than_that(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    wanted = QuestionConfig(counts={1: 60, 2: 60, 3: 60, 4: 40}, intersections=0.3)
    half = lambda entity: split_of(entity, 0.5) == TRAIN  # noqa: E731
    for allowed in (None, half):
        tasks, _ = build_questions(graph, wanted, 3, retrieve, allowed)
        found = reach(graph, allowed)
        for hops in (1, 2, 3, 4):
            answers = {task.answers[0] for task in tasks if task.hops == hops}
            assert 0 < len(answers) <= found.answers[hops - 1]
