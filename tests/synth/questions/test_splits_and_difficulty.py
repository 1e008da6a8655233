"""Splits that keep entities apart, the difficulty of questions, near-duplicates, and how much of a graph questions can reach."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from synth.formulas.projections import witnesses
from synth.graph.knowledge_graph import Hub, KnowledgeGraph, describe
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.decontamination import HELD_OUT, TRAIN, entities_of, split_of, split_tasks
from synth.questions.difficulty import PassRate, by_difficulty, deepest, pass_rates
from synth.questions.paths import MAX_SHARING, Reach, Retrieve, reach
from synth.questions.text_comparison import NearDuplicates, jaccard, shingles_of
from tests.synth.runs import run_of
from warehouse import Lake, Outcome, Task
from warehouse.records import Fact

CHAIN = (("C@a", "friend", "V@x"), ("V@x", "home", "?"))


def test_no_entity_is_on_both_sides(tasks: list[Task]) -> None:
    parts, failures = split_tasks(tasks[:180], "entity", 0.4)
    sides = {split: {entity for task in members for entity in entities_of(task)} for split, members in parts.items()}
    assert not sides[TRAIN] & sides[HELD_OUT]
    assert parts[TRAIN] and parts[HELD_OUT]
    assert len(parts[TRAIN]) + len(parts[HELD_OUT]) + len(failures) == 180
    assert {failure.kind for failure in failures} == {"by_entity"}


def test_what_links_two_constraints_is_an_entity_of_the_task(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> None:
    layers = QuestionConfig(counts={2: 20}, structure="layerwise", intersections=0.5)
    for task in (*tasks, *build_questions(graph, layers, 5, retrieve)[0]):
        linked = {value for values in witnesses(graph, task.formula, task.answers).values() for value in values.values()}
        assert {value for value in linked if not value.isdecimal()} <= entities_of(task)


def test_renamed_and_reordered_formulas_fall_together(tasks: list[Task]) -> None:
    copies = [
        Task(
            f"copy of {t.key}",
            "search",
            "?",
            t.answers,
            tuple((s.replace("V@", "V@q"), r, o.replace("V@", "V@q")) for s, r, o in t.formula[::-1]),
        )
        for t in tasks
    ]
    parts, failures = split_tasks([*tasks, *copies], "formula", 0.3)
    side = {task.key: split for split, members in parts.items() for task in members}
    assert not failures and set(side.values()) == {TRAIN, HELD_OUT}
    assert all(side[task.key] == side[f"copy of {task.key}"] for task in tasks)


@pytest.mark.slow
def test_pass_rates_leave_out_what_is_invalid_and_are_unknown_without_a_try(tmp_path: Path) -> None:
    outcomes = [Outcome.SUCCESS, Outcome.FAILURE, Outcome.FAILURE, Outcome.INVALID]
    tries = [run_of(f"{policy}-{number}", "t1", (), o, policy=policy) for policy in "pq" for number, o in enumerate(outcomes)]
    with Lake(tmp_path) as lake:
        lake.add([Task("t1", "search", "?", ("a",), CHAIN), *tries, run_of("r", "t1", (), policy="r")])
        assert pass_rates(lake, "p") == {"t1": PassRate(3, 1)}
        assert pass_rates(lake)["t1"] == PassRate(7, 3)
        (task,) = lake.tasks()
        assert by_difficulty([task], pass_rates(lake, "p"))["t1"].measured.rate == pytest.approx(1 / 3)
        assert by_difficulty([task], {})[task.key].measured.rate is None


def proven(key: str, hops: int, easy: bool | None = False, answers: tuple[str, ...] = ("a",), layers: int = 1) -> Task:
    return Task(key, "search", f"{key}?", answers, hops=hops, layers=layers, proofs={} if easy is None else {"easy": easy})


def test_the_deepest_come_first_and_easy_unproven_and_open_ones_not_at_all() -> None:
    tasks = [
        proven("shallow", 2),
        proven("easy", 6, easy=True),
        proven("unproven", 6, easy=None),
        proven("open", 6, answers=("a", "b")),
        proven("deep", 5),
        proven("layered", 5, layers=3),
    ]
    assert [task.key for task in deepest(tasks)] == ["layered", "deep", "shallow"]
    assert [task.key for task in deepest(reversed(tasks), 2)] == ["layered", "deep"]


def fact(subject: str, relation: str, value: str, stated: bool = True) -> Fact:
    return Fact(subject, relation, value, (f"d-{subject}",) if stated else ())


def test_a_shared_value_leads_to_the_others_that_have_it() -> None:
    films = KnowledgeGraph((fact("x", "star", "Ann"), fact("y", "star", "Ann"), fact("x", "year", "1990"), fact("y", "year", "1991")))
    assert reach(films, hops=3) == Reach(4, 5, (3, 3, 3))
    apart = KnowledgeGraph((fact("x", "star", "Ann"), fact("y", "director", "Ann"), fact("x", "year", "1990"), fact("y", "year", "1991")))
    assert reach(apart, hops=2) == Reach(4, 5, (3, 0)), "another relation is another value"
    crowd = KnowledgeGraph([fact(f"x{number}", "genre", "Drama") for number in range(MAX_SHARING + 1)])
    assert reach(crowd, hops=2).answers == (1, 0), "what too many share leads nowhere"


def test_questions_reach_no_more_than_that(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> None:
    half = lambda entity: split_of(entity, 0.5) == TRAIN  # noqa: E731
    some, _ = build_questions(graph, QuestionConfig(counts={1: 40, 2: 40, 3: 30, 4: 20}, intersections=0.3), 3, retrieve, half)
    for made, found in ((tasks, reach(graph)), (some, reach(graph, half))):
        for hops in (1, 2, 3, 4):
            answers = {task.answers[0] for task in made if task.hops == hops}
            assert 0 < len(answers) <= found.answers[hops - 1]


WORDS = ["amber", "stone", "river", "cloud", "paper", "light", "north", "sand", "maple", "iron", "glass", "wolf"]


def sentence(rng: random.Random, length: int = 30) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(length))


@pytest.mark.slow
def test_candidates_are_those_of_a_full_comparison() -> None:
    rng = random.Random(3)
    texts = {f"t{number}": sentence(rng) for number in range(300)}
    known = NearDuplicates(threshold=0.7)
    for name, text in texts.items():
        known.add(name, text)
    for name, text in list(texts.items())[:100]:
        words = text.split()
        words[rng.randrange(len(words))] = "changed"
        asked = shingles_of(" ".join(words))
        expected = {other for other, known_text in texts.items() if jaccard(asked, shingles_of(known_text)) >= 0.7}
        assert {other for other, _ in known.matches(" ".join(words))} == expected
        assert name in expected


FACTS = (
    Fact("Night Boat", "star", "Ann", ("d1",)),
    Fact("Night Boat", "director", "Ann", ("d1",)),
    Fact("Day Boat", "star", "Ann", ("d2",)),
    Fact("Day Boat", "star", "Ben"),
    Fact("Ann", "city", "Bergen", ("d3",)),
    Fact("Ann", "city", "Bergen", ("d4",)),
    Fact("Lone", "star", "Lorn", ("d5",)),
)


def test_the_figures_of_a_small_graph() -> None:
    shape = describe(KnowledgeGraph(FACTS))
    assert (shape.entities, shape.facts, shape.stated) == (7, 6, 5), "equal triples are one fact"
    assert shape.components == (5, 2)
    assert shape.largest_share == 5 / 7
    assert shape.relations == (("star", 4), ("city", 1), ("director", 1))
    assert shape.hubs[0] == Hub("Ann", about=1, object_of=3)
    assert shape.hubs[0].degree == 4
    assert shape.dead_ends == 3, "Ben, Bergen and Lorn"
    assert shape.mean_degree == 12 / 7
    assert shape.degrees[50] == 1
