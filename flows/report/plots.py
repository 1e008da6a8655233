"""The report's plots, drawn by Plotly: curves over steps, and bars over categories.

Colours have medium lightness, to work on light and dark pages; the page sets the colours of text and grid. Lines also differ by dash and
bars by place, so nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from flows.report.data import Alert, Curve, Evaluation, ReportData, Row, RunFacts, own_runs, stage_order, wheel_evaluations
from flows.report.summary import MonitoredMetric, limit_words
from flows.variants import HORIZONS, Variant
from rl.learner.config import MetricLimit

COLOURS = ("#4c82d9", "#d9772e", "#2b9a78", "#a065c9", "#c2517c", "#8c8a3c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY, RED = "#8b9099", "#c8503c"
SHARE_AXIS: dict[str, Any] = {"range": [0, 1.02], "tickformat": ".0%"}
_STAGE_COLOURS = {"init": GREY, "cpt": COLOURS[0], "sft": COLOURS[1], "rl": COLOURS[2]}
_STAGE_DASHES = {"init": "dot", "cpt": "dash", "sft": "dashdot"}
_VARIANT_NAMES = {"scaling": "ScalingInter", "fixed_first": "fixed at the first horizon", "fixed_last": "fixed at the last horizon"}
_SOLVED = (("always", COLOURS[2]), ("sometimes", "#d9a52e"), ("never", GREY))
_POINTS_AT_MOST = 400
_SHARES = ("success", "zero_variance", "valid", "format", "tool_success", "truncated", "effective_samples")
_FREE = ("loss", "correct_logprob")
"""Metrics whose axis need not begin at zero."""

Titles = Mapping[str, tuple[str, str]]
"""Title and note of a panel, by metric."""
OF_A_STEP = "Share of the valid trajectories of a step"
LEARNING: Titles = {
    "horizon": ("Horizon", "Turns that a trajectory may take"),
    "turns": ("Turns taken", "Mean of a trajectory"),
    "truncated": ("Ended by the horizon", OF_A_STEP),
    "hops": ("Depth of the tasks", "Mean hops of the sampled tasks"),
}
SPEED: Titles = {
    "share/rollouts": ("Time in rollouts", "Share of a step in which the learner waited for trajectories"),
    "share/learning": ("Time in learning", "Share of a step"),
    "share/waiting": ("Time in waiting", "Share of a step for rewards, filters and the lake"),
    "share/sync": ("Time in weight sync", "Share of a step"),
    "sampled_tokens_per_second": ("Sampled tokens per second", "Of the whole step"),
    "learner_tokens_per_second": ("Trained tokens per second", "While the learner runs, observations included"),
    "mfu": ("Model FLOP utilization", "Model FLOP/s of the learner over its hardware's peak"),
    "learner_memory_gib": ("Memory of the learner", "Maximum GiB over workers"),
}
HEALTH: Titles = {
    "sampled_entropy": ("Entropy as sampled", "Of the policy's actions, in nats per token; a fall to zero ends exploration"),
    "entropy": ("Entropy", "Of the tokens that were trained on, in nats"),
    "logprob_difference": ("Engine against learner", "Largest difference of log-probabilities; near zero while weights agree"),
    "token_mult_prob_error": ("Error per token", "Mean of e to the |difference| of engine and learner; 1 where they agree"),
    "grad_norm": ("Gradient norm", "Before clipping"),
    "valid": ("Valid trajectories", "Those without a fault of an engine, tool or environment"),
    "zero_variance": ("Groups without variance", "Share of groups whose rewards are all equal: they have no gradient"),
    "effective_samples": ("Effective samples", "Share of the tokens left by the importance ratios"),
    "correct_logprob": ("Likelihood of successes", "Mean log-probability of their tokens; its decay precedes collapse"),
    "format": ("Readable actions", "Share with a call or an answer"),
    "tool_success": ("Tool calls that worked", "Share of a step's calls"),
    "prompt_information": ("Prompt information", "How much first actions depend on their prompts; 0 is one template for all"),
    "staleness": ("Staleness", "Age of a token in weight versions"),
}
_LOSS: Titles = {
    "cpt": ("Loss of pre-training", "Per token, plans, decisions and documents"),
    "sft": ("Loss of the cold start", "Per action token, observations masked"),
    "rl": ("Loss of RL", "Policy gradient surrogate"),
}


class Panel(NamedTuple):
    """One plot: `figure` is Plotly's JSON (`data`, `layout`), `note` a sentence under the title."""

    title: str
    note: str
    figure: dict[str, Any]


class Entry(NamedTuple):
    """One entry of a legend; a `dash` of None stands for bars."""

    label: str
    colour: str
    dash: str | None


@dataclass(frozen=True, slots=True)
class Plots:
    """Panels that share a legend."""

    legend: tuple[Entry, ...] = ()
    panels: tuple[Panel, ...] = ()


class Bar(NamedTuple):
    """One bar: its category, height, hover values, and interval."""

    x: str
    y: float
    shown: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None


EntryOf = Callable[[Curve], Entry]


def iteration_plots(data: ReportData) -> Plots:
    """Success after each stage over the iterations, one panel per suite."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is None and evaluation.success is not None]
    if len({evaluation.turn for evaluation in evaluations}) < 2:
        return Plots()
    suites = sorted({evaluation.suite for evaluation in evaluations})
    panels = [_turns_panel(suite, [e for e in evaluations if e.suite == suite]) for suite in suites]
    return Plots(tuple(Entry(f"after {stage}", _stage_colour(stage), _stage_dash(stage)) for stage in _stages(evaluations)), tuple(panels))


def hops_plots(data: ReportData) -> Plots:
    """Success by hops after each stage with 95 % intervals, one panel per suite and iteration."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is not None]
    places = sorted({(evaluation.suite, evaluation.turn) for evaluation in evaluations})
    panels = [_hops_panel(suite, turn, [e for e in evaluations if (e.suite, e.turn) == (suite, turn)]) for suite, turn in places]
    return Plots(tuple(Entry(f"after {stage}", _stage_colour(stage), None) for stage in _stages(evaluations)), tuple(panels))


def reinforcement_plots(data: ReportData) -> Plots:
    """Reward, success, horizon, turns and depth over the steps of RL, one line per iteration."""
    curves = own_runs(data, "rl")
    beside = sorted({curve.name for curve in curves if _is_beside_success(curve.name)})
    note = "Share of the valid, by the weights at the start of each trajectory; no evaluation of the finished policy"
    titles = {
        "reward": ("Reward", "Mean over the valid trajectories of a step"),
        "success": ("Success in training", OF_A_STEP),
        **{name: (f"{name.split('/', 1)[1].rsplit('/', 1)[0]} during training", note) for name in beside},
        **LEARNING,
    }
    return _named_panels(curves, titles, _turn_entry)


def speed_plots(data: ReportData) -> Plots:
    """Time, throughput and memory over the steps of RL."""
    return _named_panels(own_runs(data, "rl"), SPEED, _turn_entry)


def reward_plots(data: ReportData) -> Plots:
    """Each part of the reward, weight times value; empty if there is only one part."""
    curves = [curve for curve in own_runs(data, "rl") if curve.name.startswith("reward_part/")]
    titles = {curve.name: (curve.name.split("/", 1)[1], "Weight times value, mean of a step") for curve in curves}
    return _named_panels(curves, titles, _turn_entry) if len(titles) > 1 else Plots()


def frontier_plots(data: ReportData) -> Plots:
    """RL's tasks by how often they were solved: one panel per iteration, one bar per depth."""
    turns = sorted({depth["wheel_turn"] for depth in data.frontier})
    panels = [_frontier_panel(turn, [depth for depth in data.frontier if depth["wheel_turn"] == turn]) for turn in turns]
    return Plots(tuple(Entry(f"{name} solved", colour, None) for name, colour in _SOLVED), tuple(panels))


def loss_plots(data: ReportData) -> Plots:
    """The loss of every stage, one line per iteration."""
    curves = {stage: [curve for curve in own_runs(data, stage) if curve.name == "loss"] for stage in _LOSS}
    panels = [_lines_panel(*_LOSS[stage], found, _turn_entry) for stage, found in curves.items()]
    return _gather(panels, [_turn_entry(curve) for found in curves.values() for curve in found])


def health_plots(data: ReportData, metrics: Sequence[MonitoredMetric]) -> Plots:
    """Monitored metrics of RL with their limits and alerts, and the share of invalid trajectories."""
    curves = [curve for curve in own_runs(data, "rl") if curve.name in HEALTH]
    panels: list[Panel | None] = []
    for name, (title, note) in HEALTH.items():
        found = [metric for metric in metrics if metric.limit.sign == name]
        limit = found[-1].limit if found else None
        note = f"{note}. {limit_words(limit)}" if limit else note
        shown = [curve for curve in curves if curve.name == name]
        panels.append(_lines_panel(title, note, shown, _turn_entry, limit, [alert for metric in found for alert in metric.alerts]))
    return _gather([*panels, _invalid_panel(data.collected)], map(_turn_entry, curves))


def tool_plots(data: ReportData) -> Plots:
    """Tool calls per trajectory, over the steps of RL and by stage, and the share that worked."""
    steps = _named_panels(own_runs(data, "rl"), {"tool_calls": ("Tool calls in RL", "Mean of a trajectory, by step")}, _turn_entry)
    if not data.tools:
        return steps

    def panel(title: str, note: str, height: Callable[[Row], float], hover: str, yaxis: dict[str, Any]) -> Panel:
        drawn = []
        for place, tool in enumerate(sorted({use["tool"] for use in data.tools})):
            uses = [use for use in data.tools if use["tool"] == tool]
            values = [Bar(f"{use['wheel_turn']} · {safe(use['stage'])}", height(use), (use["calls"],)) for use in uses]
            drawn.append(_bars(tool, COLOURS[place % len(COLOURS)], values, hover))
        return Panel(title, f"{note}; point at a bar for the tool", figure(drawn, {"type": "category"}, yaxis))

    each = panel(
        "Calls per trajectory",
        "By turn and stage",
        lambda use: use["calls"] / use["trajectories"],
        "%{x}: %{y:.2f}, %{customdata[0]:,} calls",
        {"rangemode": "tozero"},
    )
    hover = "%{x}: %{y:.1%} of %{customdata[0]:,}"
    worked = panel("Calls that worked", "Share by turn and stage", lambda use: use["ok"] / use["calls"], hover, SHARE_AXIS)
    return Plots(steps.legend, (*steps.panels, each, worked))


def curriculum_plots(data: ReportData) -> Plots:
    """The growing horizon against fixed ones; empty without such runs."""
    runs = compared_runs(data)
    titles = {"success": ("Success in training", OF_A_STEP), **{name: LEARNING[name] for name in ("turns", "horizon")}}
    return _named_panels([curve for curve in data.curves if curve.run in runs], titles, _variant_entry)


def pretraining_plots(data: ReportData) -> Plots:
    """SFT and RL with and without pre-training; empty without such runs."""
    skipped = {(run.wheel_turn, run.stage) for run in data.runs if run.variant == Variant.WITHOUT_CPT}
    curves = [c for c in data.curves if (c.run.wheel_turn, c.run.stage) in skipped and c.run.variant not in HORIZONS]
    titles = {("sft", "loss"): _LOSS["sft"], ("rl", "success"): ("Success in RL", OF_A_STEP)}
    panels: list[Panel | None] = []
    for turn, stage, name in sorted({(curve.run.wheel_turn, *key) for curve in curves for key in titles}):
        found = [c for c in curves if (c.run.wheel_turn, c.run.stage, c.name) == (turn, stage, name)]
        title, note = titles[stage, name]
        panels.append(_lines_panel(f"{title}, turn {turn}", note, found, _pretraining_entry))
    return _gather(panels, map(_pretraining_entry, curves))


def compared_runs(data: ReportData) -> list[RunFacts]:
    """The RL runs of iterations that compare curricula."""
    turns = {run.wheel_turn for run in data.runs if run.stage == "rl" and run.variant in HORIZONS}
    return [run for run in data.runs if run.stage == "rl" and run.wheel_turn in turns and run.variant != Variant.WITHOUT_CPT]


def variant_name(run: RunFacts) -> str:
    """The name of a curriculum, with its horizons."""
    name = _VARIANT_NAMES.get(run.variant or "scaling", run.variant or "")
    return f"{name} ({', '.join(map(str, run.rounds))})" if run.rounds else name


def safe(text: str) -> str:
    """Text from the lake as a label: Plotly reads some HTML in labels, and braces in templates."""
    return escape(text).replace("%{", "% {")


# ── Curves over steps ──


def _gather(panels: Iterable[Panel | None], entries: Iterable[Entry]) -> Plots:
    legend = tuple(sorted(dict.fromkeys(entries), key=lambda entry: entry.label))
    return Plots(legend, tuple(panel for panel in panels if panel is not None))


def _named_panels(curves: Sequence[Curve], titles: Titles, entry_of: EntryOf) -> Plots:
    panels = [_lines_panel(*titles[name], [curve for curve in curves if curve.name == name], entry_of) for name in titles]
    return _gather(panels, [entry_of(curve) for curve in curves if curve.name in titles])


def _lines_panel(
    title: str, note: str, curves: Sequence[Curve], entry_of: EntryOf, limit: MetricLimit | None = None, alerts: Sequence[Alert] = ()
) -> Panel | None:
    """Curves over steps; None without any. Bounds of `limit` near the curves are drawn, `alerts` marked."""
    if not curves:
        return None
    name = curves[0].name
    is_share = name in _SHARES or _is_beside_success(name)
    traces = [trace for curve in curves for trace in _line(curve, entry_of(curve))]
    yaxis = SHARE_AXIS if is_share else {"rangemode": "normal" if name in _FREE else "tozero"}
    drawn = figure([*traces, *_marks(alerts)], {"title": {"text": "step"}}, yaxis)
    line = {"color": RED, "width": 1.4, "dash": "dash"}
    drawn["layout"]["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bound, "y1": bound, "line": line} for bound in _near_bounds(limit, curves)
    ]
    return Panel(title, note, drawn)


def _is_beside_success(name: str) -> bool:
    """Whether a metric is the success of an evaluation during training."""
    return name.startswith("beside/") and name.endswith("/success")


def _line(curve: Curve, entry: Entry) -> list[go.Scatter]:
    """The measured curve, faint, under its running mean; a horizon as steps; a single value as a point."""
    pieces = min(len(curve.steps), _POINTS_AT_MOST)
    steps = [round(float(np.mean(piece)), 1) for piece in np.array_split(np.asarray(curve.steps), pieces)]
    values = [float(f"{float(np.mean(piece)):.6g}") for piece in np.array_split(np.asarray(curve.values), pieces)]
    style = {"color": entry.colour, "width": 2.2, "dash": entry.dash}
    hover = f"step %{{x}}<br>%{{y:.4~g}}<extra>{safe(entry.label)}</extra>"
    if curve.name == "horizon":
        return [go.Scatter(x=steps, y=values, mode="lines", line={**style, "shape": "hv"}, hovertemplate=hover)]
    if len(steps) == 1:
        return [go.Scatter(x=steps, y=values, mode="markers", marker={"color": entry.colour, "size": 8}, hovertemplate=hover)]
    reach = max(1, len(values) // 30)
    mean = [float(np.mean(values[max(0, i - reach) : i + reach + 1])) for i in range(len(values))]
    faint = go.Scatter(x=steps, y=values, mode="lines", line={"color": entry.colour, "width": 1}, opacity=0.3, hoverinfo="skip")
    return [faint, go.Scatter(x=steps, y=mean, mode="lines", line=style, hovertemplate=hover)]


def _near_bounds(limit: MetricLimit | None, curves: Sequence[Curve]) -> list[float]:
    """The bounds that can be drawn without flattening the curves: those within the curves' own span of them."""
    values = [value for curve in curves for value in curve.values]
    low, high = (0.0, 1.0) if curves[0].name in _SHARES else (min(values), max(values))
    bounds = [] if limit is None else [bound for bound in (limit.below, limit.above) if bound is not None]
    return [bound for bound in bounds if 2 * low - high <= bound <= 2 * high - low]


def _marks(alerts: Sequence[Alert]) -> list[go.Scatter]:
    """A cross for each alert; a value that is not finite is at 0."""
    if not alerts:
        return []
    return [
        go.Scatter(
            x=[alert.step for alert in alerts],
            y=[alert.value if np.isfinite(alert.value) else 0.0 for alert in alerts],
            mode="markers",
            marker={"symbol": "x", "size": 10, "color": RED},
            customdata=[[safe(alert.reason)] for alert in alerts],
            hovertemplate="%{customdata[0]}<extra></extra>",
        )
    ]


def _turn_entry(curve: Curve) -> Entry:
    place = curve.run.wheel_turn - 1
    return Entry(f"turn {curve.run.wheel_turn}", COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)])


def _variant_entry(curve: Curve) -> Entry:
    order = ("scaling", *HORIZONS)
    variant = curve.run.variant or "scaling"
    place = order.index(variant) if variant in order else len(order)
    return Entry(variant_name(curve.run), (COLOURS[2], *COLOURS[:2], COLOURS[3])[place], DASHES[place])


def _pretraining_entry(curve: Curve) -> Entry:
    if curve.run.variant == Variant.WITHOUT_CPT:
        return Entry("without pre-training", GREY, "dash")
    return Entry("with pre-training", COLOURS[0], "solid")


# ── Bars and points ──


def figure(traces: Sequence[go.Scatter | go.Bar], xaxis: dict[str, Any], yaxis: dict[str, Any], barmode: str = "group") -> dict[str, Any]:
    """A figure as Plotly's JSON, without the colours that the page sets."""
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


def _bars(name: str, colour: str, values: Sequence[Bar], hover: str) -> go.Bar:
    """Bars of one colour; `hover` is Plotly's template, in which `shown` is `customdata`."""
    return go.Bar(
        x=[bar.x for bar in values],
        y=[bar.y for bar in values],
        customdata=[list(bar.shown) for bar in values],
        marker={"color": colour, "line": {"width": 0}, "cornerradius": 3},
        hovertemplate=f"{hover}<extra>{safe(name)}</extra>",
        **({"error_y": _whiskers(values)} if any(bar.low is not None for bar in values) else {}),
    )


def _whiskers(values: Sequence[Bar]) -> dict[str, Any]:
    up, down = [(bar.high or 0.0) - bar.y for bar in values], [bar.y - (bar.low or 0.0) for bar in values]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 3}


def _stages(evaluations: Sequence[Evaluation]) -> list[str]:
    return sorted({evaluation.stage for evaluation in evaluations}, key=stage_order)


def _stage_colour(stage: str) -> str:
    return _STAGE_COLOURS.get(stage, COLOURS[3])


def _stage_dash(stage: str) -> str:
    return _STAGE_DASHES.get(stage, "solid")


def _bar(evaluation: Evaluation, x: str, *shown: Any) -> Bar:
    return Bar(x, evaluation.success or 0.0, (evaluation.low, evaluation.high, evaluation.judged, *shown), evaluation.low, evaluation.high)


def _turns_panel(suite: str, evaluations: Sequence[Evaluation]) -> Panel:
    lines = []
    for place, stage in enumerate(_stages(evaluations)):  # shifted a little, so that whiskers do not hide each other
        own = [evaluation for evaluation in evaluations if evaluation.stage == stage]
        values = [_bar(evaluation, "", evaluation.turn) for evaluation in own]
        lines.append(
            go.Scatter(
                x=[evaluation.turn + 0.05 * place for evaluation in own],
                y=[value.y for value in values],
                mode="lines+markers",
                line={"color": _stage_colour(stage), "width": 2.2, "dash": _stage_dash(stage)},
                error_y=_whiskers(values),
                customdata=[list(value.shown) for value in values],
                hovertemplate="turn %{customdata[3]}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}, "
                f"%{{customdata[2]}} judged<extra>after {safe(stage)}</extra>",
            )
        )
    turns = sorted({evaluation.turn for evaluation in evaluations})
    axis = {"title": {"text": "turn"}, "tickvals": turns, "range": [turns[0] - 0.25, turns[-1] + 0.35]}
    return Panel(f"Suite {suite}", "Success after each stage, with 95 % intervals", figure(lines, axis, SHARE_AXIS))


def hop_label(hops: int) -> str:
    return "1 hop" if hops == 1 else f"{hops} hops"


def _hop_axis(hops: Iterable[int]) -> dict[str, Any]:
    return {"type": "category", "categoryorder": "array", "categoryarray": [hop_label(number) for number in sorted(set(hops))]}


def _hops_panel(suite: str, turn: int, evaluations: Sequence[Evaluation]) -> Panel:
    hover = "%{x}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}<br>%{customdata[2]} judged, %{customdata[3]} invalid"
    stages, drawn = _stages(evaluations), []
    for stage in stages:
        own = sorted((e for e in evaluations if e.stage == stage and e.success is not None), key=lambda e: e.hops or 0)
        values = [_bar(evaluation, hop_label(evaluation.hops or 0), evaluation.invalid) for evaluation in own]
        drawn.append(_bars(f"after {stage}", _stage_colour(stage), values, hover))
    axis = _hop_axis(evaluation.hops for evaluation in evaluations if evaluation.hops is not None)
    tasks = sum(evaluation.tasks for evaluation in evaluations if evaluation.stage == stages[-1])
    return Panel(f"Turn {turn}", f"Suite {suite}, {tasks:,} held-out tasks", figure(drawn, axis, SHARE_AXIS))


def _frontier_panel(turn: int, depths: Sequence[Row]) -> Panel:
    hover = "%{x}: %{y:.1%}, %{customdata[0]:,} of %{customdata[1]:,} tasks"
    drawn = []
    for name, colour in _SOLVED:
        values = [Bar(hop_label(depth["hops"]), depth[name] / depth["tasks"], (depth[name], depth["tasks"])) for depth in depths]
        drawn.append(_bars(f"{name} solved", colour, values, hover))
    tasks, open_ = sum(depth["tasks"] for depth in depths), sum(depth["sometimes"] for depth in depths)
    note = f"{open_:,} of the {tasks:,} tasks were solved in some attempts and not in others"
    return Panel(f"Turn {turn}", note, figure(drawn, _hop_axis(depth["hops"] for depth in depths), SHARE_AXIS, barmode="stack"))


def _invalid_panel(collected: Sequence[Row]) -> Panel | None:
    if not collected:
        return None
    values = [
        Bar(f"{part['wheel_turn']} · {safe(part['stage'])}", part["invalid"] / part["trajectories"], (part["trajectories"],))
        for part in collected
    ]
    drawn = _bars("invalid", GREY, values, "%{x}: %{y:.1%} of %{customdata[0]:,}")
    yaxis = {"range": [0, max(0.02, 1.1 * max(bar.y for bar in values))], "tickformat": ".1~%"}
    note = "Share by turn and stage; above 2 % the figures are no result"
    return Panel("Invalid trajectories", note, figure([drawn], {"type": "category"}, yaxis))
