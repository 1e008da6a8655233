"""A demonstration that tries what a document names in its order, where the question does not say which of it leads on."""

from __future__ import annotations

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
def test_values_are_tried_in_the_order_of_the_document(other: str, year: str, tried: int) -> None:
    task = asked(other, year)
    assert path_of(GRAPH, task) is not None
    people = FILMS["Old Mill"][0][: tried + 1]
    assert shown(demonstrated(task), PartKind.CALL) == ["Old Mill", *(f"{person} {other}" for person in people)]
    assert shown(demonstrated(task, 0.0), PartKind.CALL) == ["Old Mill", f"{people[-1]} {other}"]
