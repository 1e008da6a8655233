"""Panels of the report, drawn by Plotly: lines over steps, or bars over categories.

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

from flows.report.data import Alert, Curve
from rl.learner.config import MetricLimit

COLOURS = ("#4c82d9", "#d9772e", "#2b9a78", "#a065c9", "#c2517c", "#8c8a3c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
LIMIT_COLOUR = "#c8503c"
SHARE_AXIS: dict[str, Any] = {"range": [0, 1.02], "tickformat": ".0%"}
_POINTS_AT_MOST = 400
_SHARES = ("success", "zero_variance", "valid", "format", "tool_success", "truncated", "effective_samples")
_STEPPED = ("horizon",)
_FREE = ("loss", "correct_logprob")
"""Figures whose axis need not begin at zero."""


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


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: where it stands, how high, what its hover text shows beside, and how far its whisker reaches."""

    x: str
    y: float
    shown: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None


EntryOf = Callable[[Curve], Entry]


def gather(panels: Iterable[Panel | None], entries: Iterable[Entry]) -> Plots:
    """The panels that there are, with a legend of the entries in the order of their labels."""
    legend = tuple(sorted(dict.fromkeys(entries), key=lambda entry: entry.label))
    return Plots(legend, tuple(panel for panel in panels if panel is not None))


def named_panels(curves: Sequence[Curve], titles: dict[str, tuple[str, str]], entry_of: EntryOf) -> Plots:
    """One panel for each name of a curve in `titles`: (title, note)."""
    panels = [lines_panel(*titles[name], [curve for curve in curves if curve.name == name], entry_of) for name in titles]
    return gather(panels, [entry_of(curve) for curve in curves if curve.name in titles])


def lines_panel(
    title: str, note: str, curves: Sequence[Curve], entry_of: EntryOf, limit: MetricLimit | None = None, alerts: Sequence[Alert] = ()
) -> Panel | None:
    """Curves over steps; None without any. The bound of `limit` is drawn where it lies near, `alerts` are marked."""
    if not curves:
        return None
    traces = [trace for curve in curves for trace in _line(curve, entry_of(curve))]
    panel = figure([*traces, *_marks(alerts)], xaxis={"title": {"text": "step"}}, yaxis=_axis_of(curves[0].name))
    panel["layout"]["shapes"] = [_rule(bound) for bound in _near_bounds(limit, curves)]
    return Panel(title, note, panel)


def bars(name: str, colour: str, values: Sequence[Bar], hover: str) -> go.Bar:
    """Bars of one colour; `hover` is Plotly's template, in which `shown` is `customdata`. Whiskers where the bars have them."""
    whiskers: dict[str, Any] = {}
    if any(bar.low is not None for bar in values):
        whiskers["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [(bar.high or 0.0) - bar.y for bar in values],
            "arrayminus": [bar.y - (bar.low or 0.0) for bar in values],
            "thickness": 1.2,
            "width": 3,
        }
    return go.Bar(
        x=[bar.x for bar in values],
        y=[bar.y for bar in values],
        customdata=[list(bar.shown) for bar in values],
        marker={"color": colour, "line": {"width": 0}, "cornerradius": 3},
        hovertemplate=f"{hover}<extra>{label(name)}</extra>",
        **whiskers,
    )


def figure(traces: Sequence[go.Scatter | go.Bar], xaxis: dict[str, Any], yaxis: dict[str, Any], barmode: str = "group") -> dict[str, Any]:
    """A figure as Plotly's JSON, without the colours that the page gives it."""
    plain = {"automargin": True, "zeroline": False, "fixedrange": True}
    layout = go.Layout(
        showlegend=False,
        barmode=barmode,
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


def label(text: str) -> str:
    """Text out of the lake as a label: Plotly reads some HTML in labels, and braces in templates."""
    return escape(text).replace("%{", "% {")


def hop_label(hops: int) -> str:
    """A number of hops, in words."""
    return "1 hop" if hops == 1 else f"{hops} hops"


def hop_axis(hops: Iterable[int]) -> dict[str, Any]:
    """An axis of numbers of hops, in their order whatever bars come first."""
    return {"type": "category", "categoryorder": "array", "categoryarray": [hop_label(number) for number in sorted(set(hops))]}


def is_beside_success(name: str) -> bool:
    """Whether a figure is the success on a suite that was tried beside training."""
    return name.startswith("beside/") and name.endswith("/success")


def _axis_of(name: str) -> dict[str, Any]:
    """Shares on a whole axis, losses where they lie, all else from zero."""
    if name in _SHARES or is_beside_success(name):
        return SHARE_AXIS
    return {"rangemode": "normal" if name in _FREE else "tozero"}


def _line(curve: Curve, entry: Entry) -> list[go.Scatter]:
    """The curve as it was measured, faint, under its running mean; what moves in steps is drawn so, once; one value is a point."""
    steps, values = _thinned(curve.steps, curve.values)
    style = {"color": entry.colour, "width": 2.2, "dash": entry.dash}
    hover = f"step %{{x}}<br>%{{y:.4~g}}<extra>{label(entry.label)}</extra>"
    if curve.name in _STEPPED:
        return [go.Scatter(x=steps, y=values, mode="lines", line={**style, "shape": "hv"}, hovertemplate=hover)]
    if len(steps) == 1:
        return [go.Scatter(x=steps, y=values, mode="markers", marker={"color": entry.colour, "size": 8}, hovertemplate=hover)]
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


def _near_bounds(limit: MetricLimit | None, curves: Sequence[Curve]) -> list[float]:
    """The limit's bounds that can be drawn without flattening the curves: those within the curves' own span of them, or of a share."""
    values = [value for curve in curves for value in curve.values]
    low, high = (0.0, 1.0) if curves[0].name in _SHARES else (min(values), max(values))
    bounds = [] if limit is None else [bound for bound in (limit.below, limit.above) if bound is not None]
    return [bound for bound in bounds if 2 * low - high <= bound <= 2 * high - low]


def _rule(bound: float) -> dict[str, Any]:
    """A line across the plot at a limit."""
    line = {"color": LIMIT_COLOUR, "width": 1.4, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bound, "y1": bound, "line": line}


def _marks(alerts: Sequence[Alert]) -> list[go.Scatter]:
    """A cross where a limit came to be broken; a value that is no number stands at the bottom."""
    if not alerts:
        return []
    return [
        go.Scatter(
            x=[alert.step for alert in alerts],
            y=[alert.value if np.isfinite(alert.value) else 0.0 for alert in alerts],
            mode="markers",
            marker={"symbol": "x", "size": 10, "color": LIMIT_COLOUR},
            customdata=[[label(alert.reason)] for alert in alerts],
            hovertemplate="%{customdata[0]}<extra></extra>",
        )
    ]
