"""Formulas drawn as graphs: nodes stand where networkx's layout puts them (`synth.formulas.drawing`), and Plotly draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from flows.report.panels import COLOURS, Entry, Panel, Plots, figure, label
from flows.report.questions import DrawnQuestion
from synth.formulas.drawing import NodeKind, PlacedEdge, PlacedNode, cut_label, formula_tree, placed

_SHOWN = 18
"""Characters of a node or a relation in a drawing; pointing at it shows the whole."""
_LINE = "#8b9099"
_NEW = COLOURS[2]
_KINDS = {
    NodeKind.TARGET: ("the answer", COLOURS[1], "star"),
    NodeKind.VARIABLE: ("unknown on the way", COLOURS[0], "circle"),
    NodeKind.CONSTANT: ("named in the question", _LINE, "square"),
}
"""What each kind of node is called, its colour and its form."""


def question_plots(questions: Sequence[DrawnQuestion]) -> Plots:
    """A drawing of each question."""
    if not questions:
        return Plots()
    legend = [Entry(name, colour, None) for name, colour, _ in _KINDS.values()]
    legend += [Entry("new in the last expansion", _NEW, None)] if any(question.before for question in questions) else []
    return Plots(tuple(legend), tuple(map(_panel, questions)))


def _panel(question: DrawnQuestion) -> Panel:
    nodes, edges = placed(formula_tree(question.formula, question.before))
    plain = {"visible": False, "automargin": False}
    xs = [node.x for node in nodes]
    room = 0.25 * (max(xs) - min(xs) or 1.0)
    wide = {**plain, "range": [min(xs) - room, max(xs) + room]}
    drawn = figure([_lines(nodes, edges), _relations(nodes, edges), _nodes(nodes)], wide, plain)
    hops = f"{question.hops} hop{'s' if question.hops != 1 else ''}, {question.layers} layer{'s' if question.layers != 1 else ''}"
    title = f"{question.shape}, {hops}" if question.shape else hops
    return Panel(title, f"{cut_label(question.question, 160)} ({question.alike:,} like it)", drawn)


def _lines(nodes: Sequence[PlacedNode], edges: Sequence[PlacedEdge]) -> go.Scatter:
    x: list[Any] = [value for edge in edges for value in (nodes[edge.near].x, nodes[edge.far].x, None)]
    y: list[Any] = [value for edge in edges for value in (nodes[edge.near].y, nodes[edge.far].y, None)]
    return go.Scatter(x=x, y=y, mode="lines", line={"color": _LINE, "width": 1}, hoverinfo="skip")


def _relations(nodes: Sequence[PlacedNode], edges: Sequence[PlacedEdge]) -> go.Scatter:
    """The relations, each in the middle of its line with an arrow to the triple's object."""
    return go.Scatter(
        x=[(nodes[edge.near].x + nodes[edge.far].x) / 2 for edge in edges],
        y=[(nodes[edge.near].y + nodes[edge.far].y) / 2 for edge in edges],
        mode="text",
        text=[
            label(f"{cut_label(edge.relation, _SHOWN)} →" if edge.forward else f"← {cut_label(edge.relation, _SHOWN)}") for edge in edges
        ],
        textposition="top center",
        textfont={"size": 10},
        customdata=[[label(cut_label(edge.relation, 200))] for edge in edges],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )


def _nodes(nodes: Sequence[PlacedNode]) -> go.Scatter:
    return go.Scatter(
        x=[node.x for node in nodes],
        y=[node.y for node in nodes],
        mode="markers+text",
        marker={
            "size": 11,
            "color": [_NEW if node.is_new else _KINDS[node.kind][1] for node in nodes],
            "symbol": [_KINDS[node.kind][2] for node in nodes],
        },
        text=[label(cut_label(node.text, _SHOWN)) for node in nodes],
        textposition="bottom center",
        customdata=[[label(cut_label(node.text, 200))] for node in nodes],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
