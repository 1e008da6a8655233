"""`flywheel graph`: the shape of the knowledge graph that questions are made of, and how much of it they can reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import JsonOption, ProfileOption, SetOption, print_json

if TYPE_CHECKING:
    from flows.graphs import GraphFigures

SHOWN_FACTS = 40
"""Facts of one entity that are drawn."""


def graph(
    home: Annotated[
        Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="The run's folder: its graph, and what its tasks ask.")
    ] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    around: Annotated[str | None, typer.Option(help="Draw the facts of this entity instead.")] = None,
    json_: JsonOption = False,
) -> None:
    """Components, degrees, hubs and dead ends of a knowledge graph, and what share of it questions can reach. Starts nothing.

    Example: flywheel graph --profile movies
    """
    from flows.config import load_config
    from flows.graphs import facts_around, graph_figures
    from flows.home import Home
    from flows.lakes import open_lake
    from warehouse.errors import RequestError

    if profile is not None or home is None:
        if profile is None:
            raise RequestError("flywheel graph needs --home DIR, or --profile NAME for a graph that no home has yet.")
        config, lake = load_config(profile, set_ or []), None
    else:
        if set_:
            raise RequestError("--set goes with --profile: the graph of a home is that of its own configuration.")
        config, lake = Home(home).load(), open_lake(home) if (home / "lake").is_dir() else None
    if around is not None:
        facts = facts_around(config, around)
        if json_:
            print_json([dict(zip(("subject", "relation", "object"), fact, strict=True)) for fact in facts])
        else:
            _draw_around(around, facts)
        return
    try:
        figures = graph_figures(config, lake)
    finally:
        if lake is not None:
            lake.close()
    if json_:
        print_json([one.record() for one in figures])
    else:
        for one in figures:
            _print_figures(one)


def _draw_around(entity: str, facts: list[tuple[str, str, str]]) -> None:
    from rl.terminal import say
    from synth.formulas.drawing import formula_tree, tree_lines
    from synth.formulas.triples import TARGET, constant

    def node(name: str) -> str:
        return TARGET if name == entity else constant(name)

    tree = formula_tree([(node(subject), relation, node(value)) for subject, relation, value in facts[:SHOWN_FACTS]])
    if len(tree):
        tree.nodes[0]["text"] = entity
    say("\n".join(tree_lines(tree)))
    if len(facts) > SHOWN_FACTS:
        say(f"and {len(facts) - SHOWN_FACTS:,} facts more")


def _print_figures(figures: GraphFigures) -> None:
    from rl.terminal import in_line, say

    shape = figures.topology
    degrees = ", ".join(f"{percent} % have {value:,} or fewer" for percent, value in shape.degrees.items())
    several = f"{len(shape.components):,}; the largest holds {shape.largest_share:.1%} of the entities"
    lines = [
        ("entities", f"{shape.entities:,}"),
        ("facts", f"{shape.facts:,} of {len(shape.relations)} relations; a document states {_share(shape.stated, shape.facts)}"),
        ("components", several),
        ("degrees", f"{shape.mean_degree:.1f} facts an entity in the mean; {degrees}"),
        ("dead ends", f"{_share(shape.dead_ends, shape.entities)} of the entities: no fact is about them"),
        *(("relation", f"{in_line(name)[:60]:40} {count:>10,} facts") for name, count in shape.relations[:10]),
        *(("hub", f"{in_line(hub.entity)[:60]:40} {hub.degree:>10,} facts, {hub.about:,} about it") for hub in shape.hubs),
    ]
    for who, one in figures.reach.items():
        used = f"{_share(one.facts, shape.facts)} of the facts, {_share(one.entities, shape.entities)} of the entities"
        lines.append((who, f"questions may use {used}"))
        ends = ", ".join(f"{hops} {_share(count, shape.entities)}" for hops, count in enumerate(one.answers, start=1))
        lines.append(("", f"by their hops they can end at, at the most: {ends}"))
        if who in figures.asked:
            lines.append(("", f"the home's are about {_share(figures.asked[who], shape.entities)} of the entities"))
    say(f"\n{figures.name}")
    for name, text in lines:
        say(f"  {name:11} {text}")


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else f"{part:,}"
