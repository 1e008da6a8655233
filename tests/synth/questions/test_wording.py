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


def test_a_relation_without_a_wording_is_called_by_its_name() -> None:
    assert described((BOAT, "release_year", "?"), wordings={}) == "the release year of Night Boat"
    assert described(("?", "release_year", YEAR), wordings={}) == "the one with release year 2001"


def test_braces_in_a_wording_are_text() -> None:
    odd = {"genre": Wording(("{s.__class__} and {0} of {s}?",), ("{s[0]} {x} of {s}",), "{o!r} {} {o}")}
    assert asked((BOAT, "genre", "?"), wordings=odd) == "{s.__class__} and {0} of Night Boat?"
    assert asked(("V@f", "genre", "C@War"), ("V@f", "genre", "?"), wordings=odd) == "{s.__class__} and {0} of the film {o!r} {} War?"


@pytest.mark.parametrize("name", ["{s}", "{0.__class__}", "%s", "{", "\\g<0>"])
def test_braces_in_the_name_of_an_entity_are_text(name: str) -> None:
    entity = f"C@{name}"
    assert asked((entity, "release year", "?")) == f"In which year was {name} released?"
    assert asked(("V@f", "cast member", entity), ("V@f", "genre", "?")) == f"What is the genre of the film with {name}?"
    assert described(("?", "cast member", entity), ("?", "genre", "C@War")) == f"the film with {name} and of the genre War"
    assert described((entity, "cast member", "?"), (RAIN, "cast member", "?")) == f"a cast member of {name} and a cast member of Rain"


def test_questions_of_a_corpus_are_in_its_words() -> None:
    facts = [Fact(film, "release year", year, (film,)) for film, year in (("Night Boat", "2001"), ("Rain", "2003"), ("Snow", "2004"))]
    documents = [Document(fact.subject, fact.subject, f"{fact.subject} is a film of {fact.object}.", "films") for fact in facts]
    graph = KnowledgeGraph.of(Corpus(facts=tuple(facts), documents=tuple(documents), types=TYPES, wordings=FILMS))
    tasks, _ = build_questions(graph, QuestionConfig(counts={1: 3}, variety=2), 1, first_hit(SearchIndex(documents)))
    assert {task.question for task in tasks} == {f"In which year was {fact.subject} released?" for fact in facts}
