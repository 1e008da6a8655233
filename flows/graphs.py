"""Inspect a configuration's knowledge graphs: topology, the parts that questions can reach and use, and the facts of an entity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flows.config import FlywheelConfig
from flows.stages.synthesis.sources import on_side, read_sources
from rl.terminal import in_line, say
from synth.formulas.drawing import formula_tree, tree_lines
from synth.formulas.triples import TARGET, constant
from synth.graph.knowledge_graph import MOST_FACTS, KnowledgeGraph, Topology, describe
from synth.questions.decontamination import HELD_OUT, TRAIN, entities_of
from synth.questions.paths import Reach, reach
from warehouse import Lake
from warehouse.errors import RequestError

TRAINING, SUITES = "training", "suites"
SHOWN_FACTS = 40
"""Maximum facts of an entity to draw."""


@dataclass(frozen=True, slots=True)
class GraphFigures:
    """Figures of a graph: topology, what training and suites can reach, and the entities of stored questions."""

    name: str
    topology: Topology
    reach: Mapping[str, Reach]
    asked: Mapping[str, int] = field(default_factory=dict)
    """Number of entities in the formulas (constants, path and answers) of stored tasks, for training and for suites."""

    def record(self) -> dict[str, Any]:
        topology = {**asdict(self.topology), "relations": dict(self.topology.relations), "largest_share": self.topology.largest_share}
        topology["hubs"] = [{**asdict(hub), "degree": hub.degree} for hub in self.topology.hubs]
        return {"graph": self.name, **topology, "reach": {name: asdict(one) for name, one in self.reach.items()}, "asked": dict(self.asked)}


@dataclass(frozen=True, slots=True)
class _Named:
    """A graph and the entities that each user of it may touch (None: all)."""

    name: str
    graph: KnowledgeGraph
    allowed: Mapping[str, Callable[[str], bool] | None]


def graph_figures(config: FlywheelConfig, lake: Lake | None = None) -> list[GraphFigures]:
    """Compute the figures of every graph of `config`, and of the tasks in `lake`. Raise RequestError for more than `MOST_FACTS` facts."""
    asked = _asked(lake) if lake is not None else {}
    return [_figures(named, asked) for named in _graphs(config)]


def facts_around(config: FlywheelConfig, entity: str) -> list[tuple[str, str, str]]:
    """Return every fact with the entity as subject or object. Raise RequestError if no graph has the entity."""
    for named in _graphs(config):
        number = named.graph.entities.number(entity)
        if number is not None:
            columns, names, relations = named.graph.columns, named.graph.entities, named.graph.relation_names
            about = [(entity, relations[columns.relation.item(p)], names[columns.object.item(p)]) for p in columns.places(number)]
            first, last = columns.object_starts.item(number), columns.object_starts.item(number + 1)
            places = columns.of_object[first:last].tolist()
            return about + [(names[columns.subject.item(p)], relations[columns.relation.item(p)], entity) for p in places]
    raise RequestError(f"the graph has no entity {entity!r:.200}: write its name as in the facts.")


def _graphs(config: FlywheelConfig) -> Iterator[_Named]:
    if config.corpus.kind == "pages":
        raise RequestError("corpus.kind = pages has no graph: `flywheel extract` has a teacher extract one from pages.")
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
        raise RequestError(f"{named.name} has {facts:,} facts, above the limit of {MOST_FACTS:,}: split the graph.")
    known = named.graph.entities
    about = {who: sum(known.number(entity) is not None for entity in asked[who]) for who in named.allowed if who in asked}
    return GraphFigures(
        named.name, describe(named.graph), {who: reach(named.graph, allowed) for who, allowed in named.allowed.items()}, about
    )


def _asked(lake: Lake) -> dict[str, frozenset[str]]:
    """Return the entities of stored tasks with a formula, for training tasks and all others."""
    found: dict[str, set[str]] = {TRAINING: set(), SUITES: set()}
    for task in lake.tasks():
        if task.formula:
            found[TRAINING if task.is_trained_on else SUITES] |= entities_of(task)
    return {who: frozenset(entities) for who, entities in found.items()}


def draw_around(entity: str, facts: list[tuple[str, str, str]]) -> None:

    def node(name: str) -> str:
        return TARGET if name == entity else constant(name)

    tree = formula_tree([(node(subject), relation, node(value)) for subject, relation, value in facts[:SHOWN_FACTS]])
    if len(tree):
        tree.nodes[0]["text"] = entity
    say("\n".join(tree_lines(tree)))
    if len(facts) > SHOWN_FACTS:
        say(f"and {len(facts) - SHOWN_FACTS:,} more facts")


def print_figures(figures: GraphFigures) -> None:

    shape = figures.topology
    degrees = ", ".join(f"{percent} % have {value:,} or fewer" for percent, value in shape.degrees.items())
    several = f"{len(shape.components):,}; the largest has {shape.largest_share:.1%} of the entities"
    lines = [
        ("entities", f"{shape.entities:,}"),
        ("facts", f"{shape.facts:,} of {len(shape.relations)} relations; a document states {_share(shape.stated, shape.facts)}"),
        ("components", several),
        ("degrees", f"{shape.mean_degree:.1f} facts per entity on average; {degrees}"),
        ("dead ends", f"{_share(shape.dead_ends, shape.entities)} of the entities are the subject of no fact"),
        *(("relation", f"{in_line(name)[:60]:40} {count:>10,} facts") for name, count in shape.relations[:10]),
        *(("hub", f"{in_line(hub.entity)[:60]:40} {hub.degree:>10,} facts, {hub.about:,} about it") for hub in shape.hubs),
    ]
    for who, one in figures.reach.items():
        used = f"{_share(one.facts, shape.facts)} of the facts, {_share(one.entities, shape.entities)} of the entities"
        lines.append((who, f"questions may use {used}"))
        ends = ", ".join(f"{hops} {_share(count, shape.entities)}" for hops, count in enumerate(one.answers, start=1))
        lines.append(("", f"possible answers by hops, at most: {ends}"))
        if who in figures.asked:
            lines.append(("", f"the home's questions are about {_share(figures.asked[who], shape.entities)} of the entities"))
    say(f"\n{figures.name}")
    for name, text in lines:
        say(f"  {name:11} {text}")


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else f"{part:,}"
