"""The knowledge graphs of a configuration: their shape, what questions can reach of them and do ask about, the facts of one entity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flows.config import FlywheelConfig
from flows.stages.synthesis.sources import on_side, read_sources
from synth.graph.knowledge_graph import MOST_FACTS, KnowledgeGraph, Topology, describe
from synth.questions.decontamination import HELD_OUT, TRAIN, entities_of
from synth.questions.paths import Reach, reach
from warehouse import Lake
from warehouse.errors import RequestError

TRAINING, SUITES = "training", "suites"


@dataclass(frozen=True, slots=True)
class GraphFigures:
    """One graph: its shape, what training and suites can reach of it, and the entities that stored questions are about."""

    name: str
    topology: Topology
    reach: Mapping[str, Reach]
    asked: Mapping[str, int] = field(default_factory=dict)
    """Entities that the stored tasks of training and of suites are about: constants, way and answers."""

    def record(self) -> dict[str, Any]:
        """The same as JSON has it."""
        topology = {**asdict(self.topology), "relations": dict(self.topology.relations), "largest_share": self.topology.largest_share}
        topology["hubs"] = [{**asdict(hub), "degree": hub.degree} for hub in self.topology.hubs]
        return {"graph": self.name, **topology, "reach": {name: asdict(one) for name, one in self.reach.items()}, "asked": dict(self.asked)}


@dataclass(frozen=True, slots=True)
class _Named:
    """A graph, and for each of those who ask about it which entities they may touch (None: all)."""

    name: str
    graph: KnowledgeGraph
    allowed: Mapping[str, Callable[[str], bool] | None]


def graph_figures(config: FlywheelConfig, lake: Lake | None = None) -> list[GraphFigures]:
    """The figures of every graph of `config`; of the tasks of a `lake` too, where there is one.

    Raises:
        RequestError: a graph is too large to be looked at so.
    """
    asked = _asked(lake) if lake is not None else {}
    return [_figures(named, asked) for named in _graphs(config)]


def facts_around(config: FlywheelConfig, entity: str) -> list[tuple[str, str, str]]:
    """Every fact of an entity, about it or with it as its object, as (subject, relation, object).

    Raises:
        RequestError: no graph of `config` knows the entity.
    """
    for named in _graphs(config):
        number = named.graph.entities.number(entity)
        if number is not None:
            columns, names, relations = named.graph.columns, named.graph.entities, named.graph.relation_names
            about = [(entity, relations[columns.relation.item(p)], names[columns.object.item(p)]) for p in columns.places(number)]
            first, last = columns.object_starts.item(number), columns.object_starts.item(number + 1)
            places = columns.of_object[first:last].tolist()
            return about + [(names[columns.subject.item(p)], relations[columns.relation.item(p)], entity) for p in places]
    raise RequestError(f"the graph has no entity {entity!r:.200}: give its name as the facts have it.")


def _graphs(config: FlywheelConfig) -> Iterator[_Named]:
    if config.corpus.kind == "pages":
        raise RequestError("corpus.kind = pages has no graph to look at: `flywheel extract` has a teacher read one out of pages.")
    sources = read_sources(config.corpus, config.seed)
    if sources.shared:
        sides = {TRAINING: TRAIN, SUITES: HELD_OUT}
        yield _Named(config.corpus.kind, KnowledgeGraph.of(sources.train), {who: on_side(side) for who, side in sides.items()})
        return
    yield _Named("the training world", KnowledgeGraph.of(sources.train), {TRAINING: None})
    yield _Named("the suites' world", KnowledgeGraph.of(sources.held_out), {SUITES: None})


def _figures(named: _Named, asked: Mapping[str, frozenset[str]]) -> GraphFigures:
    facts = len(named.graph.columns.subject)
    if facts > MOST_FACTS:
        raise RequestError(f"{named.name} has {facts:,} facts, and a graph of at most {MOST_FACTS:,} is looked at: cut it into parts.")
    known = named.graph.entities
    about = {who: sum(known.number(entity) is not None for entity in asked[who]) for who in named.allowed if who in asked}
    return GraphFigures(
        named.name, describe(named.graph), {who: reach(named.graph, allowed) for who, allowed in named.allowed.items()}, about
    )


def _asked(lake: Lake) -> dict[str, frozenset[str]]:
    """The entities that the stored tasks with a formula are about: those that are trained on, and all others."""
    found: dict[str, set[str]] = {TRAINING: set(), SUITES: set()}
    for task in lake.tasks():
        if task.formula:
            found[TRAINING if task.is_trained_on else SUITES] |= entities_of(task)
    return {who: frozenset(entities) for who, entities in found.items()}
