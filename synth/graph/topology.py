"""The shape of a knowledge graph: components, degrees, hubs, dead ends, and what lies around one entity. Library: networkx.

An edge is a fact. Components are those of the graph without directions, for a knowledge projection has none. A dead end is an entity that
no fact is about: whoever comes there by facts goes no further forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from synth.graph.knowledge_graph import KnowledgeGraph

if TYPE_CHECKING:
    import networkx

MOST_FACTS = 2_000_000
"""Facts of a graph that is looked at: networkx takes about 460 bytes for each."""
HUBS = 10
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Hub:
    """An entity of many facts: how many are about it, and of how many it is the object."""

    entity: str
    about: int
    object_of: int

    @property
    def degree(self) -> int:
        """All of them."""
        return self.about + self.object_of


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of one graph. `components` are their sizes in entities, the largest first; `degrees` percentiles by their number."""

    entities: int
    facts: int
    stated: int
    """Facts that a document states."""
    relations: tuple[tuple[str, int], ...]
    """The relations with their facts, the most frequent first."""
    components: tuple[int, ...]
    mean_degree: float
    degrees: dict[int, int]
    hubs: tuple[Hub, ...]
    dead_ends: int

    @property
    def largest_share(self) -> float:
        """The share of the entities that the largest component holds."""
        return self.components[0] / self.entities if self.entities else 0.0


def network_of(graph: KnowledgeGraph) -> networkx.MultiDiGraph:
    """The graph for networkx: entities and relations by their numbers, an edge from subject to object for each fact."""
    from networkx import MultiDiGraph

    network, columns = MultiDiGraph(), graph.columns
    network.add_nodes_from(range(len(columns.object_starts) - 1))
    network.add_edges_from(zip(columns.subject.tolist(), columns.object.tolist(), columns.relation.tolist(), strict=True))
    return network


def describe(graph: KnowledgeGraph) -> Topology:
    """The shape of `graph`. One without a fact has none: all is 0."""
    from networkx import weakly_connected_components

    network = network_of(graph)
    degrees = dict(network.degree())
    hubs = sorted(degrees, key=lambda number: (-degrees[number], number))[:HUBS]
    columns = graph.columns
    values = list(degrees.values()) or [0]
    counts = np.bincount(columns.relation, minlength=len(graph.relation_names)).tolist()
    return Topology(
        entities=len(network),
        facts=network.number_of_edges(),
        stated=int((np.diff(columns.document_starts) > 0).sum()),
        relations=tuple(sorted(zip(graph.relation_names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))),
        components=tuple(sorted(map(len, weakly_connected_components(network)), reverse=True)),
        mean_degree=float(np.mean(values)),
        degrees={percent: int(value) for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)},
        hubs=tuple(Hub(graph.entities[number], network.out_degree(number), network.in_degree(number)) for number in hubs),
        dead_ends=sum(not out for _, out in network.out_degree()),
    )
