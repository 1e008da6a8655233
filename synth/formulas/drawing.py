"""Draw a formula as a tree: as text for a terminal, or with coordinates for a page.

The root is the target. The children of an unknown are the triples that define it (`triples.spread`), so depth is the layer in which a grown
question got the triple. Each mention of a constant is a separate node; a triple that closes a cycle ends in a node that repeats the
unknown's name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from synth.formulas.triples import CONSTANT, TARGET, Tree, is_constant, spread
from warehouse.records import Triple

if TYPE_CHECKING:
    import networkx

MOST_TRIPLES = 100
"""Maximum triples drawn; released formulas have up to 47."""
LONGEST_LABEL = 60


class NodeKind(StrEnum):
    TARGET = "target"
    VARIABLE = "variable"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node with coordinates. Layers run from left to right, the target's is 0; `is_new` marks nodes of the last expansion."""

    text: str
    kind: NodeKind
    layer: int
    x: float
    y: float
    is_new: bool


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """A triple between two node numbers; `forward` if its subject is the node nearer to the target."""

    near: int
    far: int
    relation: str
    forward: bool


def formula_tree(formula: Sequence[Triple], before: Collection[Triple] = ()) -> networkx.DiGraph:
    """Formula as a tree of numbered nodes from the target outwards, at most `MOST_TRIPLES` triples; triples not in `before` are marked new.

    Nodes have `text`, `kind`, `layer` and `is_new`; edges `relation` and `forward`. Triples not connected to the target get their own root.
    """
    from networkx import DiGraph

    tree = DiGraph()
    shown = list(formula)[:MOST_TRIPLES]
    below = spread(shown)
    _hang(tree, below, TARGET, _add(tree, TARGET, 0, False), 0, set(before))
    drawn = [triple for triples in below.values() for triple, _ in triples]
    for triple in shown:
        if triple in drawn:
            drawn.remove(triple)
        else:
            _join(tree, _add(tree, triple[0], 1, False), triple, triple[2], 2, set(before))
    return tree


def _hang(tree: networkx.DiGraph, below: Tree, node: str, number: int, layer: int, before: set[Triple]) -> None:
    for triple, is_new_unknown in below.get(node, ()):
        other = triple[2] if triple[0] == node else triple[0]
        child = _join(tree, number, triple, other, layer + 1, before)
        if is_new_unknown:
            _hang(tree, below, other, child, layer + 1, before)


def _join(tree: networkx.DiGraph, number: int, triple: Triple, other: str, layer: int, before: set[Triple]) -> int:
    child = _add(tree, other, layer, bool(before) and triple not in before)
    tree.add_edge(number, child, relation=triple[1], forward=triple[2] == other)
    return child


def _add(tree: networkx.DiGraph, node: str, layer: int, is_new: bool) -> int:
    number = len(tree)
    kind = NodeKind.TARGET if node == TARGET else NodeKind.CONSTANT if is_constant(node) else NodeKind.VARIABLE
    text = node.removeprefix(CONSTANT) if kind is NodeKind.CONSTANT else node
    tree.add_node(number, text=text, kind=kind, layer=layer, is_new=is_new)
    return number


def tree_lines(tree: networkx.DiGraph) -> list[str]:
    """Render the tree as text lines; `+` marks new nodes."""
    from networkx import generate_network_text

    labelled = tree.to_undirected()
    for number, about in tree.nodes(data=True):
        above = next(iter(tree.in_edges(number, data=True)), None)
        labelled.nodes[number]["label"] = _label(about, None if above is None else above[2])
    roots = [number for number, degree in tree.in_degree() if not degree]
    return list(generate_network_text(labelled, sources=roots))


def placed(tree: networkx.DiGraph) -> tuple[list[PlacedNode], list[PlacedEdge]]:
    from networkx import multipartite_layout

    places = multipartite_layout(tree, subset_key="layer")
    nodes = [
        PlacedNode(about["text"], about["kind"], about["layer"], float(places[number][0]), float(places[number][1]), about["is_new"])
        for number, about in tree.nodes(data=True)
    ]
    return nodes, [PlacedEdge(near, far, about["relation"], about["forward"]) for near, far, about in tree.edges(data=True)]


def _label(about: dict[str, Any], edge: dict[str, Any] | None) -> str:
    text = cut_label(about["text"])
    if edge is not None:
        relation = cut_label(edge["relation"])
        text = f"—{relation}→ {text}" if edge["forward"] else f"←{relation}— {text}"
    return f"{text}  +" if about["is_new"] else text


def cut_label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Collapse whitespace and truncate to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
