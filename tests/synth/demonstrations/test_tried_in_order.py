"""A demonstration that tries what a document names in its order, where the question does not say which of it leads on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.demonstrations.cold_start import DemonstrationConfig, build_demonstrations
from synth.demonstrations.oracle import path_of
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.corpora.corpus import Corpus, with_documents
from warehouse.records import Document, Example, Fact, PartKind, Task

FILMS = {
    "Old Mill": (("Ann Lee", "Bob Ray", "Cy Poe"), "1950"),
    "Night Boat": (("Ann Lee", "Dot May"), "1951"),
    "Long Road": (("Bob Ray", "Eve Orr"), "1952"),
    "High Tide": (("Cy Poe", "Flo Kay"), "1953"),
}
DOCUMENTS = tuple(
    Document(name, name, f"{name} is a film of {year} with {', '.join(cast)}.", "films") for name, (cast, year) in FILMS.items()
)
FACTS = tuple(
    fact
    for name, (cast, year) in FILMS.items()
    for fact in (*(Fact(name, "cast member", person) for person in cast), Fact(name, "release year", year))
)
GRAPH = KnowledgeGraph.of(with_documents(Corpus(facts=FACTS, documents=DOCUMENTS)))


def search(query: str) -> Document:
    """The document of that title, or the first of those that name most of the people asked for."""
    return max(DOCUMENTS, key=lambda document: (document.title == query, sum(name in query for name in FILMS[document.title][0])))


def asked(other: str, year: str) -> Task:
    """When was the film with `other` and with a cast member of Old Mill released?"""
    both = (("V@y", "cast member", "V@x"), ("V@y", "cast member", f"C@{other}"))
    formula = (("C@Old Mill", "cast member", "V@x"), *both, ("V@y", "release year", "?"))
    return Task(f"with {other}", "search", f"When was the film with {other} and a cast member of Old Mill out?", (year,), formula)


def shown(example: Example, kind: PartKind) -> list[str]:
    return [part.text for part in example.parts if part.kind is kind]


def demonstrated(task: Task, in_order: float = 1.0) -> Example:
    (example,), failures = build_demonstrations(GRAPH, [task], DemonstrationConfig(in_order=in_order), 1, search)
    assert failures == []
    return example


@pytest.mark.parametrize(("other", "year", "tried"), [("Dot May", "1951", 0), ("Eve Orr", "1952", 1), ("Flo Kay", "1953", 2)])
def test_what_stands_before_it_in_the_document_is_tried_first(other: str, year: str, tried: int) -> None:
    task = asked(other, year)
    assert path_of(GRAPH, task) is not None
    people = FILMS["Old Mill"][0][: tried + 1]
    assert shown(demonstrated(task), PartKind.CALL) == ["Old Mill", *(f"{person} {other}" for person in people)]
    assert shown(demonstrated(task, 0.0), PartKind.CALL) == ["Old Mill", f"{people[-1]} {other}"]


def test_each_try_is_thought_of_and_shows_what_the_search_brings() -> None:
    example = demonstrated(asked("Flo Kay", "1953"))
    assert shown(example, PartKind.THOUGHT) == ["cast member Ann Lee", "cast member Bob Ray", "cast member Cy Poe", "release year 1953"]
    results = shown(example, PartKind.RESULT)
    assert results[-1] == DOCUMENTS[3].text and results[1] != results[-1] and results[2] != results[-1]
    assert shown(example, PartKind.ANSWER) == ["1953"]


def test_a_share_of_them_is_drawn() -> None:
    tasks = [replace(asked("Flo Kay", "1953"), key=f"k{number}") for number in range(100)]
    examples, _ = build_demonstrations(GRAPH, tasks, DemonstrationConfig(in_order=0.3), 1, search)
    searches = [len(shown(example, PartKind.CALL)) for example in examples]
    assert set(searches) == {2, 4} and 15 < searches.count(4) < 45
