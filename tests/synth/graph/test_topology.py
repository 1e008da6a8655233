"""The shape of a graph that can be counted by hand."""

from __future__ import annotations

from synth.graph.knowledge_graph import Hub, KnowledgeGraph, describe
from warehouse.records import Fact

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
