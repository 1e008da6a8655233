"""Rewordings are kept where they ask the same and dropped with their reason where they do not; the texts are given, as a teacher's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.rewording import RewordingConfig, RewordingDefect, check, reword, same_formula
from synth.questions.wording import Phrasing
from synth.teachers.teacher import REPAIRS, Fault
from synth.worlds.schema import WORDINGS
from tests.synth.scripted import ScriptedTeacher
from warehouse.records import Fact, Task

FORMULA = (("C@Amber Stone", "employer", "V@a"), ("V@a", "seat", "?"))
TASK = Task("k", "search", "base of workplace of Amber Stone?", ("Green Lake",), FORMULA)
PHRASING = Phrasing.of(KnowledgeGraph((), wordings=WORDINGS))
GOOD = "Amber Stone works somewhere: in which city is that workplace's base?"
READ = '[["V@x", "seat", "?"], ["C@Amber Stone", "employer", "V@x"]]'


@pytest.fixture
def graph() -> KnowledgeGraph:
    triples = [("Amber Stone", "employer", "Blue River"), ("Blue River", "seat", "Green Lake"), ("Amber Stone", "school", "Red Hill")]
    return KnowledgeGraph([Fact(*triple) for triple in triples], wordings=WORDINGS)


def says(wording: str | None, reading: str | None = READ) -> ScriptedTeacher:
    return ScriptedTeacher(lambda text: reading if "Relations:" in text else wording)


def defects(question: str, task: Task = TASK, hidden: Sequence[str] = ("Blue River",), words: bool = True) -> list[RewordingDefect]:
    return [finding.defect for finding in check(question, task, hidden, PHRASING if words else None)]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (GOOD, []),
        ("base of workplace, of Amber Stone?", [RewordingDefect.UNCHANGED]),
        ("Where is the base of the workplace of Amber?", [RewordingDefect.CONSTANT_MISSING]),
        ("Where is the base of the workplace of Amber Stone, in Green Lake?", [RewordingDefect.ANSWER_LEAKED]),
        ("Where is the base of Blue River, the workplace of Amber Stone?", [RewordingDefect.WAY_LEAKED]),
        ("Where was the base of the workplace of Amber Stone in 1999?", [RewordingDefect.NUMBER_ADDED]),
        ("Where is the base of Amber Stone?", [RewordingDefect.RELATION_MISSING]),
        ("Sure!\nWhere is the base of the workplace of Amber Stone?", [RewordingDefect.SEVERAL_LINES]),
        ("The base of the workplace of Amber Stone is a city.", [RewordingDefect.NOT_ASKED]),
    ],
)
def test_what_a_rewording_must_say(question: str, expected: list[RewordingDefect]) -> None:
    assert defects(question) == expected


def test_names_inside_names_leak_nothing() -> None:
    """The answer Green is no leak in the constant Green Lake, and 90 none in the constant 90210."""
    formula = (("C@Green Lake", "founder", "?"),)
    task = Task("k", "search", "creator of Green Lake?", ("Green",), formula)
    assert defects("Who is the creator of Green Lake?", task) == []
    assert defects("Who but Green is the creator of Green Lake?", task) == [RewordingDefect.ANSWER_LEAKED]


@pytest.mark.parametrize(
    ("facts", "types", "same"),
    [
        ([("Ann", "mentor", "Bob"), ("Cid", "mentor", "Ann")], {}, False),
        ([("Ann", "mentor", "Bob"), ("Cid", "mentor", "Dan")], dict.fromkeys(("Ann", "Bob", "Cid", "Dan"), "person"), False),
        ([("Ann", "mentor", "Blue River")], {"Ann": "person", "Blue River": "company"}, True),
    ],
    ids=["a chain", "one type", "two types"],
)
def test_the_direction_of_a_relation_between_two_of_one_kind_must_stay(
    facts: list[tuple[str, str, str]], types: dict[str, str], same: bool
) -> None:
    graph = KnowledgeGraph([Fact(*fact) for fact in facts], types=types)
    mentors, pupils = (("C@Ann", "mentor", "?"),), (("?", "mentor", "C@Ann"),)
    assert same_formula(mentors, pupils, graph) is same
    assert same_formula(mentors, mentors, graph)
    task = Task("k", "search", "mentor of Ann?", ("Nobody",), mentors)
    made, failures = reword([task], says("Whose mentor is Ann?", '[["?", "mentor", "C@Ann"]]'), RewordingConfig(), 0, graph)
    assert (len(made), [failure.kind for failure in failures]) == ((1, []) if same else (0, [RewordingDefect.READ_DIFFERENTLY]))


def test_a_rewording_is_kept_with_where_it_came_from_and_its_reader_sees_it_alone(graph: KnowledgeGraph) -> None:
    teacher = says(GOOD)
    (task,), failures = reword([TASK], teacher, RewordingConfig(), 0, graph)
    assert failures == []
    assert (task.question, task.answers, task.formula) == (GOOD, TASK.answers, TASK.formula)
    assert task.key != TASK.key
    about = {"reworded_from": "k", "original": TASK.question, "teacher": "scripted", "relations_checked_by": "reading"}
    assert about.items() <= task.provenance.items()
    reading = teacher.asked[-1]
    assert GOOD in reading and TASK.question not in reading
    assert "Relations: employer, school, seat\n" in reading


@pytest.mark.parametrize(
    ("reading", "kind"),
    [
        ('[["C@Amber Stone", "school", "V@x"], ["V@x", "seat", "?"]]', RewordingDefect.READ_DIFFERENTLY),
        ('[["Amber Stone", "employer", "?"]]', RewordingDefect.UNREADABLE),
        ("I cannot do that.", Fault.MALFORMED),
        (None, Fault.TIMEOUT),
    ],
)
def test_a_question_that_reads_differently_is_dropped(graph: KnowledgeGraph, reading: str | None, kind: str) -> None:
    made, (failure,) = reword([TASK], says(GOOD, reading), RewordingConfig(), 0, graph)
    assert made == []
    assert failure.kind == kind


def test_variants_are_tasks_of_their_own_and_doubles_are_dropped(graph: KnowledgeGraph) -> None:
    config, said = RewordingConfig(variants=3, relations="words"), iter(("", "Say: ", "Now, "))
    teacher = ScriptedTeacher(lambda _: f"{next(said)}{GOOD}")
    made, failures = reword([TASK], teacher, config, 0, graph)
    assert len({task.key for task in made}) == len({task.question for task in made}) == 3 and failures == []
    assert len({request.seed for request in teacher.requests}) == 3
    once, failures = reword([TASK], says(GOOD), config, 0, graph)
    assert len(once) == 1 and [failure.kind for failure in failures] == [RewordingDefect.DOUBLE] * 2 * (1 + REPAIRS)


@pytest.mark.parametrize(
    ("question", "relation", "asked"),
    [
        ("When was Room and Board released?", "release_year", True),
        ("From which year is Room and Board?", "release_year", True),
        ("Who made Room and Board?", "director", True),
        ("Which actors appear in Room and Board?", "starring", True),
        ("Who is the leading man of Room and Board?", "director", False),
        ("What is the plot of Room and Board?", "release_year", False),
        ("What is the genre of Room and Board?", "director", False),
    ],
)
def test_a_relation_is_asked_for_by_forms_of_its_words_and_by_what_asks_for_such_a_thing(question: str, relation: str, asked: bool) -> None:
    task = Task("k", "search", "?", ("x",), (("C@Room and Board", relation, "?"),))
    graph = KnowledgeGraph([Fact("Room and Board", relation, "x", ("d",), "t")], [])
    defects = [finding.defect for finding in check(question, task, (), Phrasing.of(graph))]
    assert defects == ([] if asked else [RewordingDefect.RELATION_MISSING])
