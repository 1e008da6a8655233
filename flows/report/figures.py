"""The report's plots, made by Plotly: each a panel with a title, drawn when it scrolls into view.

Colours are of middle lightness, so that they stand on a light and on a dark page; text and grid take their colour from the
page itself. No difference rests on colour alone: lines differ by dash, bars by place and order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from flows.report.data import COMPARED, Collected, Curve, Evaluation, ReportData, RunFacts, ToolUse, stage_order
from flows.report.summary import wheel_evaluations

_COLOURS = ("#4c82d9", "#d9772e", "#2b9a78", "#a065c9", "#c2517c", "#8c8a3c")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_STAGE_COLOURS = {"init": "#8b9099", "cpt": "#4c82d9", "sft": "#d9772e", "rl": "#2b9a78"}
_VARIANT_NAMES = {"scaling": "ScalingInter", "fixed_first": "fixed at the first horizon", "fixed_last": "fixed at the last horizon"}
_POINTS_AT_MOST = 400


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: `figure` is Plotly's JSON (`data`, `layout`), `note` a sentence under the title."""

    title: str
    note: str
    figure: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a legend; a `dash` of None stands for bars."""

    label: str
    colour: str
    dash: str | None


@dataclass(frozen=True, slots=True)
class Plots:
    """Panels that share a legend."""

    legend: tuple[Entry, ...] = ()
    panels: tuple[Panel, ...] = field(default=())


def hops_plots(data: ReportData) -> Plots:
    """Success by hops after each stage: one panel a suite and turn, bars with 95 % intervals."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is not None]
    places = sorted({(evaluation.suite, evaluation.turn) for evaluation in evaluations})
    panels = [_hops_panel(suite, turn, [e for e in evaluations if (e.suite, e.turn) == (suite, turn)]) for suite, turn in places]
    return Plots(tuple(Entry(f"after {stage}", _stage_colour(stage), None) for stage in _stages(evaluations)), tuple(panels))


def reinforcement_plots(data: ReportData) -> Plots:
    """Reward, success, horizon, turns and tool calls over the steps of RL, a line for each turn of the wheel."""
    titles = {
        "reward": ("Reward", "Mean over the valid trajectories of a step"),
        "success": ("Success in training", "Share of the valid trajectories of a step"),
        "horizon": ("Horizon", "Turns that a trajectory may take"),
        "turns": ("Turns taken", "Mean of a trajectory"),
        "tool_calls": ("Tool calls", "Mean of a trajectory"),
        "zero_variance": ("Groups without variance", "Share of groups whose rewards are all equal: they teach nothing"),
    }
    return _named_panels(_own(data, "rl"), titles, _turn_entry)


def loss_plots(data: ReportData) -> Plots:
    """The loss of every stage over its steps, a line for each turn of the wheel."""
    named = {"cpt": "Loss of pre-training", "sft": "Loss of the cold start", "rl": "Loss of RL"}
    curves = [curve for stage in named for curve in _own(data, stage)]
    notes = {
        "cpt": "Per token, plans, decisions and documents",
        "sft": "Per action token, observations masked",
        "rl": "Policy gradient surrogate",
    }
    panels = [
        _lines_panel(title, notes[stage], [curve for curve in curves if curve.run.stage == stage and curve.name == "loss"], _turn_entry)
        for stage, title in named.items()
    ]
    return _plots(panels, [_turn_entry(curve) for curve in curves if curve.name == "loss"])


def health_plots(data: ReportData) -> Plots:
    """Signs of health over the steps of RL."""
    titles = {
        "entropy": ("Entropy", "Of the policy's actions, in nats a token; a fall to zero ends exploration"),
        "logprob_difference": ("Engine against learner", "Largest difference of log-probabilities; near zero while weights agree"),
        "grad_norm": ("Gradient norm", "Before clipping"),
        "valid": ("Valid trajectories", "Those without a fault of an engine, tool or environment"),
    }
    plots = _named_panels(_own(data, "rl"), titles, _turn_entry)
    shares = [panel for panel in (_invalid_panel(data.collected), _tool_panel(data.tools)) if panel is not None]
    return Plots(plots.legend, plots.panels + tuple(shares))


def curriculum_plots(data: ReportData) -> Plots:
    """The growing horizon against fixed ones; empty where the lake holds no run to compare."""
    turns = {run.wheel_turn for run in data.runs if run.stage == "rl" and run.variant in COMPARED}
    curves = [curve for curve in data.curves if curve.run.stage == "rl" and curve.run.wheel_turn in turns]
    titles = {
        "success": ("Success in training", "Share of the valid trajectories of a step"),
        "turns": ("Turns taken", "Mean of a trajectory"),
        "horizon": ("Horizon", "Turns that a trajectory may take"),
    }
    return _named_panels(curves, titles, _variant_entry)


def variant_name(run: RunFacts) -> str:
    """What a curriculum is called, with its horizons."""
    name = _VARIANT_NAMES.get(run.variant or "scaling", run.variant or "")
    return f"{name} ({', '.join(map(str, run.rounds))})" if run.rounds else name


def _own(data: ReportData, stage: str) -> list[Curve]:
    """Curves of the wheel's own runs of a stage."""
    return [curve for curve in data.curves if curve.run.stage == stage and curve.run.variant not in COMPARED]


def _named_panels(curves: Sequence[Curve], titles: dict[str, tuple[str, str]], entry_of: Callable[[Curve], Entry]) -> Plots:
    """One panel for each name of a curve in `titles`: (title, note)."""
    found = {name: [curve for curve in curves if curve.name == name] for name in titles}
    panels = [_lines_panel(*titles[name], found[name], entry_of) for name in titles]
    return _plots(panels, [entry_of(curve) for curve in curves if curve.name in titles])


def _plots(panels: Iterable[Panel | None], entries: Sequence[Entry]) -> Plots:
    legend = tuple(sorted(dict.fromkeys(entries), key=lambda entry: entry.label))
    return Plots(legend, tuple(panel for panel in panels if panel is not None))


def _turn_entry(curve: Curve) -> Entry:
    place = curve.run.wheel_turn - 1
    return Entry(f"turn {curve.run.wheel_turn}", _COLOURS[place % len(_COLOURS)], _DASHES[place % len(_DASHES)])


def _variant_entry(curve: Curve) -> Entry:
    order = ("scaling", *COMPARED)
    variant = curve.run.variant or "scaling"
    place = order.index(variant) if variant in order else len(order)
    label = variant_name(curve.run)
    colours = (_STAGE_COLOURS["rl"], *_COLOURS[:2], _COLOURS[3])
    return Entry(label, colours[place], _DASHES[place])


def _lines_panel(title: str, note: str, curves: Sequence[Curve], entry_of: Callable[[Curve], Entry]) -> Panel | None:
    if not curves:
        return None
    traces = [trace for curve in curves for trace in _line(curve, entry_of(curve))]
    return Panel(title, note, _figure(traces, xaxis={"title": {"text": "step"}}, yaxis=_axis_of(curves[0].name)))


_SHARES = ("success", "zero_variance", "valid")
_STEPPED = ("horizon",)


def _axis_of(name: str) -> dict[str, Any]:
    """Shares on a whole axis, losses where they lie, all else from zero."""
    if name in _SHARES:
        return {"range": [0, 1.02], "tickformat": ".0%"}
    return {"rangemode": "normal" if name == "loss" else "tozero"}


def _line(curve: Curve, entry: Entry) -> list[go.Scatter]:
    """The curve as it was measured, faint, under its running mean; a curve that moves in steps is drawn once, in steps."""
    steps, values = _thinned(curve.steps, curve.values)
    style = {"color": entry.colour, "width": 2.2, "dash": entry.dash}
    hover = f"step %{{x}}<br>%{{y:.4~g}}<extra>{_label(entry.label)}</extra>"
    if curve.name in _STEPPED:
        return [go.Scatter(x=steps, y=values, mode="lines", line={**style, "shape": "hv"}, hovertemplate=hover)]
    faint = go.Scatter(x=steps, y=values, mode="lines", line={"color": entry.colour, "width": 1}, opacity=0.3, hoverinfo="skip")
    return [faint, go.Scatter(x=steps, y=_running_mean(values), mode="lines", line=style, hovertemplate=hover)]


def _thinned(steps: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most 400 points: the means of equal stretches."""
    pieces = min(len(steps), _POINTS_AT_MOST)
    step_means = [float(np.mean(piece)) for piece in np.array_split(np.asarray(steps), pieces)]
    value_means = [float(np.mean(piece)) for piece in np.array_split(np.asarray(values), pieces)]
    return [round(step, 1) for step in step_means], [float(f"{value:.6g}") for value in value_means]


def _running_mean(values: Sequence[float]) -> list[float]:
    """Centred mean over about a fifteenth of the curve; shorter at its ends, so that nothing is shifted."""
    reach = max(1, len(values) // 30)
    return [float(np.mean(values[max(0, i - reach) : i + reach + 1])) for i in range(len(values))]


def _stages(evaluations: Sequence[Evaluation]) -> list[str]:
    return sorted({evaluation.stage for evaluation in evaluations}, key=stage_order)


def _stage_colour(stage: str) -> str:
    return _STAGE_COLOURS.get(stage, _COLOURS[3])


def _hops_panel(suite: str, turn: int, evaluations: Sequence[Evaluation]) -> Panel:
    stages = _stages(evaluations)
    hops = sorted({evaluation.hops for evaluation in evaluations if evaluation.hops is not None})
    found = {(evaluation.stage, evaluation.hops): evaluation for evaluation in evaluations if evaluation.success is not None}
    bars = [_bars(stage, [(number, found[stage, number]) for number in hops if (stage, number) in found]) for stage in stages]
    order = {"type": "category", "categoryorder": "array", "categoryarray": [_hop_label(number) for number in hops]}
    figure = _figure(bars, xaxis=order, yaxis={"range": [0, 1.02], "tickformat": ".0%"})
    tasks = sum(evaluation.tasks for evaluation in evaluations if evaluation.stage == stages[-1])
    return Panel(f"Turn {turn}", f"Suite {suite}, {tasks:,} held-out tasks", figure)


def _bars(stage: str, bars: Sequence[tuple[int, Evaluation]]) -> go.Bar:
    success = [evaluation.success or 0.0 for _, evaluation in bars]
    return go.Bar(
        x=[_hop_label(number) for number, _ in bars],
        y=success,
        marker={"color": _stage_colour(stage), "line": {"width": 0}, "cornerradius": 3},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [(evaluation.high or 0.0) - share for (_, evaluation), share in zip(bars, success, strict=True)],
            "arrayminus": [share - (evaluation.low or 0.0) for (_, evaluation), share in zip(bars, success, strict=True)],
            "thickness": 1.2,
            "width": 3,
        },
        customdata=[[evaluation.low, evaluation.high, evaluation.judged, evaluation.invalid] for _, evaluation in bars],
        hovertemplate="%{x}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}"
        f"<br>%{{customdata[2]}} judged, %{{customdata[3]}} invalid<extra>after {_label(stage)}</extra>",
    )


def _hop_label(hops: int) -> str:
    return "1 hop" if hops == 1 else f"{hops} hops"


def _invalid_panel(collected: Sequence[Collected]) -> Panel | None:
    if not collected:
        return None
    bars = go.Bar(
        x=[f"{part.wheel_turn} · {_label(part.stage)}" for part in collected],
        y=[part.invalid / part.trajectories for part in collected],
        customdata=[[part.trajectories] for part in collected],
        marker={"color": _STAGE_COLOURS["init"], "cornerradius": 3},
        hovertemplate="%{x}: %{y:.1%} of %{customdata[0]:,}<extra></extra>",
    )
    worst = max(part.invalid / part.trajectories for part in collected)
    yaxis = {"range": [0, max(0.02, 1.1 * worst)], "tickformat": ".1~%"}
    note = "Share by turn and stage; above 2 % the figures are no result"
    return Panel("Invalid trajectories", note, _figure([bars], {"type": "category"}, yaxis))


def _tool_panel(tools: Sequence[ToolUse]) -> Panel | None:
    if not tools:
        return None
    names = sorted({use.tool for use in tools})
    bars = [_tool_bars(name, [use for use in tools if use.tool == name], place) for place, name in enumerate(names)]
    figure = _figure(bars, xaxis={"type": "category"}, yaxis={"range": [0, 1.02], "tickformat": ".0%"})
    return Panel("Tool calls that worked", "Share by turn and stage; point at a bar for the tool and its calls", figure)


def _tool_bars(tool: str, uses: Sequence[ToolUse], place: int) -> go.Bar:
    return go.Bar(
        x=[f"{use.wheel_turn} · {_label(use.stage)}" for use in uses],
        y=[use.ok / use.calls for use in uses],
        customdata=[[use.calls] for use in uses],
        marker={"color": _COLOURS[place % len(_COLOURS)], "cornerradius": 3},
        hovertemplate=f"%{{x}}: %{{y:.1%}} of %{{customdata[0]:,}}<extra>{_label(tool)}</extra>",
    )


def _label(text: str) -> str:
    """Text out of the lake as a label: Plotly reads some HTML in labels, and braces in templates."""
    return escape(text).replace("%{", "% {")


def _figure(traces: Sequence[go.Scatter | go.Bar], xaxis: dict[str, Any], yaxis: dict[str, Any]) -> dict[str, Any]:
    plain = {"automargin": True, "zeroline": False, "fixedrange": True}
    layout = go.Layout(
        showlegend=False,
        barmode="group",
        bargap=0.28,
        bargroupgap=0.08,
        hovermode="closest",
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis={**plain, "showgrid": False, "ticks": "", **xaxis},
        yaxis={**plain, "nticks": 6, "exponentformat": "power", **yaxis},
    )
    return {"data": [trace.to_plotly_json() for trace in traces], "layout": layout.to_plotly_json()}
