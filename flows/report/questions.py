"""The report's questions, one of each kind with its formula drawn as a graph, and the topology of the underlying graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from flows.report.plots import COLOURS, GREY, Entry, Panel, figure, hop_label, safe
from synth.formulas.drawing import NodeKind, PlacedEdge, PlacedNode, cut_label, formula_tree, placed
from synth.graph.knowledge_graph import KnowledgeGraph, Topology, describe
from warehouse import Lake
from warehouse.json_text import read_json
from warehouse.records import Triple

DRAWN = 12
"""Maximum number of questions drawn."""
MOST_TRIPLES = 24
"""Maximum triples of a drawn formula."""
MOST_FACTS = 500_000
"""Maximum facts of a graph whose topology the report shows; `flywheel graph` handles larger ones."""
_LABEL_CHARACTERS = 18
_NODES = {
    NodeKind.TARGET: ("the answer", COLOURS[1], "star"),
    NodeKind.VARIABLE: ("unknown on the way", COLOURS[0], "circle"),
    NodeKind.CONSTANT: ("named in the question", GREY, "square"),
}
"""Name, colour and symbol of each node kind."""
_NEW = COLOURS[2]


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A question of one kind: its formula, the formula `before` its expansion, and the number of stored questions `alike`."""

    key: str
    question: str
    hops: int
    layers: int
    shape: str
    formula: tuple[Triple, ...]
    before: tuple[Triple, ...]
    alike: int


_QUESTIONS = """
WITH drawn AS (
    SELECT key, question, hops, layers, coalesce(provenance->>'shape', '') AS shape, formula, provenance->>'expanded_from' AS origin
    FROM tasks WHERE json_array_length(formula) > 0
), counted AS (
    SELECT *, count(*) OVER kind AS alike, row_number() OVER (kind ORDER BY key) AS place FROM drawn
    WHERE json_array_length(formula) <= ? WINDOW kind AS (PARTITION BY hops, layers, shape, origin IS NULL)
)
SELECT c.* EXCLUDE (place, origin), o.formula AS before FROM counted c LEFT JOIN tasks o ON o.key = c.origin
WHERE c.place = 1 ORDER BY c.layers, c.hops, c.shape, c.key LIMIT ?
"""


def read_questions(lake: Lake) -> tuple[DrawnQuestion, ...]:
    """Read one question of each kind with a formula, simplest first."""
    rows = lake.query(_QUESTIONS, [MOST_TRIPLES, DRAWN]).to_pylist()
    return tuple(DrawnQuestion(**{**row, "formula": _triples(row["formula"]), "before": _triples(row["before"])}) for row in rows)


def read_graphs(lake: Lake) -> list[tuple[str, Topology | None]]:
    """Topology of each fact source's graph; None if it is too large."""
    sources = lake.query("SELECT source, count(*) AS facts FROM facts GROUP BY source ORDER BY source").to_pylist()
    return [(row["source"], _shape(lake, row["source"]) if row["facts"] <= MOST_FACTS else None) for row in sources]


def _shape(lake: Lake, source: str) -> Topology:
    rows = lake.query("SELECT subject, relation, object, documents FROM facts WHERE source = ? ORDER BY ALL", [source])
    subjects, relations, objects, documents = rows.columns
    return describe(KnowledgeGraph.from_columns(subjects, relations, objects, documents, source))


def _triples(formula: str | None) -> tuple[Triple, ...]:
    return tuple((str(s), str(r), str(o)) for s, r, o in read_json(formula)) if formula else ()


def question_plots(questions: Sequence[DrawnQuestion]) -> list[Panel]:
    """Draw the formula of each question, laid out by networkx (`synth.formulas.drawing`)."""
    legend = [Entry(name, colour, None) for name, colour, _ in _NODES.values()]
    legend += [Entry("new in the last expansion", _NEW, None)] if any(question.before for question in questions) else []
    panels, hidden = [], {"visible": False, "automargin": False}
    for question in questions:
        nodes, edges = placed(formula_tree(question.formula, question.before))
        xs = [node.x for node in nodes]
        room = 0.25 * (max(xs) - min(xs) or 1.0)
        drawn = figure(_formula(nodes, edges), {**hidden, "range": [min(xs) - room, max(xs) + room]}, hidden)
        hops = f"{hop_label(question.hops)}, {question.layers} layer{'s' if question.layers != 1 else ''}"
        note = f"{cut_label(question.question, 160)} ({question.alike:,} like it)"
        panels.append(Panel(f"{question.shape}, {hops}" if question.shape else hops, note, drawn, tuple(legend)))
    return panels


def _formula(nodes: Sequence[PlacedNode], edges: Sequence[PlacedEdge]) -> list[go.Scatter]:
    """Draw lines, relation labels at their midpoints with an arrow to the object, and nodes."""
    ends = [(nodes[edge.near], nodes[edge.far]) for edge in edges]
    x: list[Any] = [value for near, far in ends for value in (near.x, far.x, None)]
    y: list[Any] = [value for near, far in ends for value in (near.y, far.y, None)]
    relations = [cut_label(edge.relation, _LABEL_CHARACTERS) for edge in edges]
    arrows = [f"{text} →" if edge.forward else f"← {text}" for text, edge in zip(relations, edges, strict=True)]
    hover = "%{customdata[0]}<extra></extra>"
    return [
        go.Scatter(x=x, y=y, mode="lines", line={"color": GREY, "width": 1}, hoverinfo="skip"),
        go.Scatter(
            x=[(near.x + far.x) / 2 for near, far in ends],
            y=[(near.y + far.y) / 2 for near, far in ends],
            mode="text",
            text=list(map(safe, arrows)),
            textposition="top center",
            textfont={"size": 10},
            customdata=[[safe(cut_label(edge.relation, 200))] for edge in edges],
            hovertemplate=hover,
        ),
        go.Scatter(
            x=[node.x for node in nodes],
            y=[node.y for node in nodes],
            mode="markers+text",
            marker={
                "size": 11,
                "color": [_NEW if node.is_new else _NODES[node.kind][1] for node in nodes],
                "symbol": [_NODES[node.kind][2] for node in nodes],
            },
            text=[safe(cut_label(node.text, _LABEL_CHARACTERS)) for node in nodes],
            textposition="bottom center",
            customdata=[[safe(cut_label(node.text, 200))] for node in nodes],
            hovertemplate=hover,
        ),
    ]
