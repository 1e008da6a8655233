"""Questions in plain English: by the words that a graph brings for its relations, to the letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from rl.retrieval.search import SearchIndex
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import first_hit
from synth.questions.wording import Phrasing, word_question
from warehouse.corpora.corpus import Corpus, Wording
from warehouse.corpora.films import WORDINGS as FILMS
from warehouse.records import Document, Fact, Triple

ROWS = (
    ("Night Boat", "release year", "2001"),
    ("Night Boat", "cast member", "Ann Lee"),
    ("Night Boat", "genre", "War"),
    ("Rain", "release year", "2003"),
    ("Rain", "cast member", "Ann Lee"),
)
TYPES = {"Night Boat": "film", "Rain": "film", "Ann Lee": "person", "2001": "year", "2003": "year", "War": "genre"}
PREFIXES = ("Who or what is ", "Name ", "Find ", "I am looking for ", "Could you tell me ")
BOAT, RAIN, ANN, YEAR = "C@Night Boat", "C@Rain", "C@Ann Lee", "C@2001"


def phrasing_of(wordings: Mapping[str, Wording], rows: Sequence[tuple[str, str, str]] = ROWS) -> Phrasing:
    return Phrasing.of(KnowledgeGraph([Fact(*row) for row in rows], types=TYPES, wordings=wordings))


def asked(*formula: Triple, wordings: Mapping[str, Wording] = FILMS, variety: int = 2, seed: int = 0) -> str:
    return word_question(formula, phrasing_of(wordings), variety, Random(seed))


def described(*formula: Triple, wordings: Mapping[str, Wording] = FILMS) -> str:
    """What is asked for where the question opens in one of the general ways."""
    question = asked(*formula, wordings=wordings)
    (prefix,) = (prefix for prefix in PREFIXES if question.startswith(prefix))
    return question.removeprefix(prefix)[:-1]


# One relation and several


@pytest.mark.parametrize(
    ("relation", "question"),
    [
        ("release year", "In which year was Night Boat released?"),
        ("cast member", "Who is in the cast of Night Boat?"),
        ("genre", "What is the genre of Night Boat?"),
    ],
)
def test_one_relation_is_asked_for_in_a_sentence_of_its_own(relation: str, question: str) -> None:
    assert asked((BOAT, relation, "?")) == question


SENTENCES: dict[str, tuple[Triple, ...]] = {
    "In which year was the film with Ann Lee released?": (("V@f", "cast member", ANN), ("V@f", "release year", "?")),
    "What is the genre of the film released in 2001?": (("V@f", "release year", YEAR), ("V@f", "genre", "?")),
    "What is the genre of the film with Ann Lee and released in 2001?": (
        ("V@f", "cast member", ANN), ("V@f", "release year", YEAR), ("V@f", "genre", "?"),
    ),
    "What is the genre of the film with a cast member of Rain?": (
        (RAIN, "cast member", "V@p"), ("V@f", "cast member", "V@p"), ("V@f", "genre", "?"),
    ),
    "What is the genre of the film released in 2001 and with (a cast member of Rain and a cast member of Night Boat)?": (
        (RAIN, "cast member", "V@p"), (BOAT, "cast member", "V@p"), ("V@f", "cast member", "V@p"), ("V@f", "release year", YEAR),
        ("V@f", "genre", "?"),
    ),
    "Who is in the cast of the film released in 2001 or 2003?": (("V@f", "release year", "C@2001 | 2003"), ("V@f", "cast member", "?")),
}  # fmt: skip


@pytest.mark.parametrize("question", SENTENCES)
def test_conditions_are_described_joined_nested_and_bracketed(question: str) -> None:
    assert asked(*SENTENCES[question]) == question


def test_a_target_of_several_relations_is_described_by_all() -> None:
    assert described(("?", "release year", YEAR), ("?", "cast member", ANN)) == "the film released in 2001 and with Ann Lee"
    assert described((BOAT, "cast member", "?"), (RAIN, "cast member", "?")) == "a cast member of Night Boat and a cast member of Rain"


def test_longer_chains_are_nested() -> None:
    people = {**FILMS, "home": Wording(("Where does {s} live?",), ("the home of {s}",), "from {o}")}
    assert asked((BOAT, "cast member", "V@p"), ("V@p", "home", "?"), wordings=people) == "Where does a cast member of Night Boat live?"
    formula = ((BOAT, "cast member", "V@p"), ("V@p", "home", "V@h"), ("V@q", "home", "V@h"), ("V@q", "born", "?"))
    lived = {**people, "born": Wording(("When was {s} born?",))}
    assert asked(*formula, wordings=lived) == "When was the one from the home of a cast member of Night Boat born?"


# What a wording lacks


def test_a_relation_without_a_question_of_its_own_is_asked_for_by_its_phrase() -> None:
    bare = {"release year": Wording(phrases=("the year of {s}",))}
    assert described((BOAT, "release year", "?"), wordings=bare) == "the year of Night Boat"


def test_a_relation_without_a_wording_is_called_by_its_name() -> None:
    assert described((BOAT, "release_year", "?"), wordings={}) == "the release year of Night Boat"
    assert described(("?", "release_year", YEAR), wordings={}) == "the one with release year 2001"


def test_a_relation_without_a_condition_is_told_by_its_name_beside_one_that_has_one() -> None:
    some = {"release year": FILMS["release year"]}
    formula = (("V@f", "genre", "C@War"), ("V@f", "release year", YEAR), ("V@f", "cast member", "?"))
    assert described(*formula, wordings=some) == "the cast member of the film with genre War and released in 2001"


def test_a_condition_of_what_leads_to_an_entity_says_nothing_of_what_is_known_of_it() -> None:
    formula = ((BOAT, "cast member", "?"), ("?", "home", "C@Oslo"))
    assert described(*formula) == "a cast member of Night Boat with home Oslo"


# Varieties


def test_the_freest_form_takes_any_of_the_wordings() -> None:
    found = {asked((BOAT, "release year", "?"), variety=3, seed=seed) for seed in range(20)}
    assert found == {"In which year was Night Boat released?", "When did Night Boat come out?"}


@pytest.mark.parametrize(
    ("formula", "compact", "plain"),
    [
        (
            (("C@Amber Stone", "employer", "V@c"), ("V@c", "seat", "?")),
            "base of workplace of Amber Stone?",
            "the seat of the employer of Amber Stone",
        ),
        (
            (("V@f", "director", "C@Amber Stone"), ("V@f", "star", "?")),
            "lead of the film with filmmaker Amber Stone?",
            "the star of the film with director Amber Stone",
        ),
        (
            (("?", "director", "C@Amber Stone"), ("?", "star", "C@Red Hill")),
            "the film with filmmaker Amber Stone and lead Red Hill?",
            "the film with director Amber Stone and star Red Hill",
        ),
    ],
)
def test_a_generated_world_speaks_as_before(graph: KnowledgeGraph, formula: tuple[Triple, ...], compact: str, plain: str) -> None:
    phrasing = Phrasing.of(graph)
    assert word_question(formula, phrasing, 1, Random(0)) == compact
    assert word_question(formula, phrasing, 2, Random(0)) == f"I am looking for {plain}."


# Hostile words


def test_braces_in_a_wording_are_text() -> None:
    odd = {"genre": Wording(("{s.__class__} and {0} of {s}?",), ("{s[0]} {x} of {s}",), "{o!r} {} {o}")}
    assert asked((BOAT, "genre", "?"), wordings=odd) == "{s.__class__} and {0} of Night Boat?"
    assert asked(("V@f", "genre", "C@War"), ("V@f", "genre", "?"), wordings=odd) == "{s.__class__} and {0} of the film {o!r} {} War?"


@pytest.mark.parametrize("name", ["{s}", "{o}", "{}", "{0.__class__}", "%s", "{", "}", "\\g<0>"])
def test_braces_in_the_name_of_an_entity_are_text(name: str) -> None:
    entity = f"C@{name}"
    assert asked((entity, "release year", "?")) == f"In which year was {name} released?"
    assert asked(("V@f", "cast member", entity), ("V@f", "genre", "?")) == f"What is the genre of the film with {name}?"
    assert described(("?", "cast member", entity), ("?", "genre", "C@War")) == f"the film with {name} and of the genre War"
    assert described((entity, "cast member", "?"), (RAIN, "cast member", "?")) == f"a cast member of {name} and a cast member of Rain"


# Whole corpora


def test_questions_of_a_corpus_are_in_its_words() -> None:
    facts = [Fact(film, "release year", year, (film,)) for film, year in (("Night Boat", "2001"), ("Rain", "2003"), ("Snow", "2004"))]
    documents = [Document(fact.subject, fact.subject, f"{fact.subject} is a film of {fact.object}.", "films") for fact in facts]
    graph = KnowledgeGraph.of(Corpus(facts=tuple(facts), documents=tuple(documents), types=TYPES, wordings=FILMS))
    tasks, _ = build_questions(graph, QuestionConfig(counts={1: 3}, variety=2), 1, first_hit(SearchIndex(documents)))
    assert {task.question for task in tasks} == {f"In which year was {fact.subject} released?" for fact in facts}


def test_of_two_corpora_that_are_joined_the_first_says_how_a_relation_is_spoken_of() -> None:
    ours, theirs = Wording(("Ours of {s}?",)), Wording(("Theirs of {s}?",))
    joined = Corpus(wordings={"a": ours}).joined(Corpus(wordings={"a": theirs, "b": theirs}))
    assert joined.wordings == {"a": ours, "b": theirs}
