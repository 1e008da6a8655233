"""The report's Plotly plots: curves over steps, and bars over categories.

Colours have medium lightness to work on light and dark pages; the page sets the colours of text and grid. Lines also differ by dash and
bars by position, so nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from flows.report.data import (
    Curve,
    Evaluation,
    MonitoredMetric,
    ReportData,
    Row,
    monitored_metrics,
    own_curves,
    rounds_of,
    stage_order,
    variant_of,
    wheel_evaluations,
)
from flows.variants import HORIZONS, Variant
from rl.learner.config import MetricLimit
from warehouse import Run

COLOURS = ("#4c82d9", "#d9772e", "#2b9a78", "#a065c9", "#c2517c", "#8c8a3c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY, RED = "#8b9099", "#c8503c"
SHARE_AXIS: dict[str, Any] = {"range": [0, 1.02], "tickformat": ".0%"}
_STAGES = {"init": (GREY, "dot"), "cpt": (COLOURS[0], "dash"), "sft": (COLOURS[1], "dashdot"), "rl": (COLOURS[2], "solid")}
_VARIANT_NAMES = {"scaling": "ScalingInter", "fixed_first": "fixed at the first horizon", "fixed_last": "fixed at the last horizon"}
_SOLVED = (("always", COLOURS[2]), ("sometimes", "#d9a52e"), ("never", GREY))
_POINTS_AT_MOST = 400
_SHARES = ("success", "zero_variance", "valid", "format", "tool_success", "truncated", "effective_samples")
_FREE = ("loss", "correct_logprob")
"""Metrics whose axis need not begin at zero."""

Titles = dict[str, tuple[str, str]]
"""Title and note of a panel, by metric."""
_OF_A_STEP = "Share of the valid trajectories of a step"
_REWARD: Titles = {
    "reward": ("Reward", "Mean over the valid trajectories of a step"),
    "success": ("Success in training", _OF_A_STEP),
}
_LEARNING: Titles = {
    "horizon": ("Horizon", "Turns that a trajectory may take"),
    "turns": ("Turns taken", "Mean of a trajectory"),
    "truncated": ("Ended by the horizon", _OF_A_STEP),
    "hops": ("Depth of the tasks", "Mean hops of the sampled tasks"),
}
_SPEED: Titles = {
    "share/rollouts": ("Time in rollouts", "Share of a step in which the learner waited for trajectories"),
    "share/learning": ("Time in learning", "Share of a step"),
    "share/waiting": ("Time in waiting", "Share of a step for rewards, filters and the lake"),
    "share/sync": ("Time in weight sync", "Share of a step"),
    "sampled_tokens_per_second": ("Sampled tokens per second", "Of the whole step"),
    "learner_tokens_per_second": ("Trained tokens per second", "While the learner runs, observations included"),
    "mfu": ("Model FLOP utilization", "Model FLOP/s of the learner over its hardware's peak"),
    "learner_memory_gib": ("Memory of the learner", "Maximum GiB over workers"),
}
_HEALTH: Titles = {
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
    "tool_errors": ("Tool calls that failed", "Share of a step's calls that were wrong or broke the tool"),
    "without_calls": ("Trajectories without a call", "Share of those that were offered tools and several turns"),
    "unjudged_tasks": ("Tasks without a verdict", "Share of those with a trajectory that ended without a fault"),
    "prompt_information": ("Prompt information", "How much first actions depend on their prompts; 0 is one template for all"),
    "staleness": ("Staleness", "Age of a token in weight versions"),
}
_TOOLS: Titles = {"tool_calls": ("Tool calls in RL", "Mean of a trajectory, by step")}
_LOSS: Titles = {
    "cpt": ("Loss of pre-training", "Per token, plans, decisions and documents"),
    "sft": ("Loss of the cold start", "Per action token, observations masked"),
    "rl": ("Loss of RL", "Policy gradient surrogate"),
}
_DURING = "Share of the valid, by the weights at the start of each trajectory; no evaluation of the finished policy"


class Entry(NamedTuple):
    """A legend entry; without a `dash` it stands for bars."""

    label: str
    colour: str
    dash: str | None


class Panel(NamedTuple):
    """A plot: `figure` is Plotly's JSON (`data`, `layout`), `note` a sentence under the title. The panels of a section share a legend."""

    title: str
    note: str
    figure: dict[str, Any]
    legend: tuple[Entry, ...] = ()


# ── Curves over steps ──


def reinforcement_plots(data: ReportData) -> list[Panel]:
    """Reward, success, horizon, turns and hops over RL steps, one line per iteration."""
    curves = own_curves(data, "rl")
    during = {name: (f"{name.split('/', 1)[1].rsplit('/', 1)[0]} during training", _DURING) for name in _names(curves) if _is_suite(name)}
    return _metric_panels(curves, {**_REWARD, **during, **_LEARNING})


def speed_plots(data: ReportData) -> list[Panel]:
    """Time, throughput and memory over RL steps."""
    return _metric_panels(own_curves(data, "rl"), _SPEED)


def reward_plots(data: ReportData) -> list[Panel]:
    """Each part of the reward, weight times value; empty if there is only one part."""
    curves = own_curves(data, "rl")
    parts = [name for name in _names(curves) if name.startswith("reward_part/")]
    titles = {name: (name.split("/", 1)[1], "Weight times value, mean of a step") for name in parts}
    return _metric_panels(curves, titles) if len(parts) > 1 else []


def loss_plots(data: ReportData) -> list[Panel]:
    """Loss of every stage, one line per iteration."""
    return [panel for stage, title in _LOSS.items() for panel in _metric_panels(own_curves(data, stage), {"loss": title})]


def health_plots(data: ReportData) -> list[Panel]:
    """Monitored RL metrics with their limits and alerts, and the share of invalid trajectories."""
    panels = _metric_panels(own_curves(data, "rl"), _HEALTH, metrics=monitored_metrics(data))
    if not data.collected:
        return panels
    shares = _shares(data.collected, "invalid", "trajectories", "trajectories")
    yaxis = {"range": [0, max(0.02, 1.1 * max(shares["y"]))], "tickformat": ".1~%"}
    bars = _bars("invalid", GREY, list(map(_stage_label, data.collected)), "%{x}: %{y:.1%} of %{customdata[0]:,}", shares)
    drawn = figure([bars], {"type": "category"}, yaxis)
    return [*panels, Panel("Invalid trajectories", "Share by turn and stage; above 2 % the figures are no result", drawn)]


def curriculum_plots(data: ReportData) -> list[Panel]:
    """The growing horizon against fixed ones; empty without such runs."""
    runs = {run.id for run in compared_runs(data)}
    titles = {name: (_REWARD | _LEARNING)[name] for name in ("success", "turns", "horizon")}
    return _metric_panels([curve for curve in data.curves if curve.run.id in runs], titles, _variant_entry)


def pretraining_plots(data: ReportData) -> list[Panel]:
    """SFT and RL with and without pre-training; empty without such runs."""
    panels = list[Panel]()
    for turn, stage in sorted({(run.wheel_turn, run.stage) for run in data.runs if variant_of(run) == Variant.WITHOUT_CPT}):
        curves = [c for c in data.curves if (c.run.wheel_turn, c.run.stage) == (turn, stage) and variant_of(c.run) not in HORIZONS]
        (name, (title, note)) = ("loss", _LOSS["sft"]) if stage == "sft" else ("success", ("Success in RL", _OF_A_STEP))
        panels += _metric_panels(curves, {name: (f"{title}, iteration {turn}", note)}, _pretraining_entry)
    return panels


def compared_runs(data: ReportData) -> list[Run]:
    """RL runs of the iterations that compare curricula."""
    turns = {run.wheel_turn for run in data.runs if run.stage == "rl" and variant_of(run) in HORIZONS}
    return [run for run in data.runs if run.stage == "rl" and run.wheel_turn in turns and variant_of(run) != Variant.WITHOUT_CPT]


def variant_name(run: Run) -> str:
    name, rounds = _VARIANT_NAMES.get(variant_of(run), variant_of(run)), rounds_of(run)
    return f"{name} ({', '.join(map(str, rounds))})" if rounds else name


def demanded(limit: MetricLimit) -> str:
    bounds = (("at least", limit.below), ("at most", limit.above), ("no fall by more than", limit.falls))
    wanted = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None) or "a finite number"
    return f"{wanted}, {limit.then} after {limit.steps} step{'' if limit.steps == 1 else 's'}"


def _turn_entry(run: Run) -> Entry:
    place = run.wheel_turn - 1
    return Entry(f"iteration {run.wheel_turn}", COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)])


def _variant_entry(run: Run) -> Entry:
    order, variant = ("scaling", *HORIZONS), variant_of(run)
    place = order.index(variant) if variant in order else len(order)
    return Entry(variant_name(run), (COLOURS[2], *COLOURS[:2], COLOURS[3])[place], DASHES[place])


def _pretraining_entry(run: Run) -> Entry:
    if variant_of(run) == Variant.WITHOUT_CPT:
        return Entry("without pre-training", GREY, "dash")
    return Entry("with pre-training", COLOURS[0], "solid")


def _metric_panels(
    curves: Sequence[Curve],
    titles: Titles,
    entry_of: Callable[[Run], Entry] = _turn_entry,
    metrics: Sequence[MonitoredMetric] = (),
) -> list[Panel]:
    """Draw a panel for each metric with curves. Draw the bounds near the curves from the last limit in `metrics`, and mark alerts."""
    panels = []
    for name, (title, note) in titles.items():
        own = [curve for curve in curves if curve.name == name]
        if not own:
            continue
        monitored = [metric for metric in metrics if metric.limit.sign == name]
        limit = monitored[-1].limit if monitored else None
        traces = [trace for curve in own for trace in _line(curve, entry_of(curve.run))]
        traces += _marks([alert for metric in monitored for alert in metric.alerts])
        yaxis = SHARE_AXIS if name in _SHARES or _is_suite(name) else {"rangemode": "normal" if name in _FREE else "tozero"}
        drawn = figure(traces, {"title": {"text": "step"}}, yaxis)
        drawn["layout"]["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": bound,
                "y1": bound,
                "line": {"color": RED, "width": 1.4, "dash": "dash"},
            }
            for bound in (_near_bounds(limit, own) if limit else ())
        ]
        legend = tuple(dict.fromkeys(entry_of(curve.run) for curve in own))
        panels.append(Panel(title, f"{note}. Limit: {demanded(limit)}." if limit else note, drawn, legend))
    return panels


def _names(curves: Iterable[Curve]) -> list[str]:
    return sorted({curve.name for curve in curves})


def _is_suite(name: str) -> bool:
    """Whether a metric is the success of an evaluation during training."""
    return name.startswith("beside/") and name.endswith("/success")


def _line(curve: Curve, entry: Entry) -> list[go.Scatter]:
    """Draw the measured curve faintly under its running mean, a horizon as steps, and a single value as a point."""
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


def _near_bounds(limit: MetricLimit, curves: Sequence[Curve]) -> list[float]:
    """Bounds that can be drawn without flattening the curves: at most the curves' span away from them."""
    values = [value for curve in curves for value in curve.values]
    low, high = (0.0, 1.0) if curves[0].name in _SHARES else (min(values), max(values))
    return [bound for bound in (limit.below, limit.above) if bound is not None and 2 * low - high <= bound <= 2 * high - low]


def _marks(alerts: Sequence[Row]) -> list[go.Scatter]:
    """A cross for each alert; non-finite values are drawn at 0."""
    if not alerts:
        return []
    return [
        go.Scatter(
            x=[alert["step"] for alert in alerts],
            y=[alert["value"] if np.isfinite(alert["value"]) else 0.0 for alert in alerts],
            mode="markers",
            marker={"symbol": "x", "size": 10, "color": RED},
            customdata=[[safe(alert["reason"])] for alert in alerts],
            hovertemplate="%{customdata[0]}<extra></extra>",
        )
    ]


# ── Bars, and points over iterations ──


def iteration_plots(data: ReportData) -> list[Panel]:
    """Success after each stage over the iterations, one panel per suite; empty with a single iteration."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is None and evaluation.success is not None]
    turns = sorted({evaluation.turn for evaluation in evaluations})
    if len(turns) < 2:
        return []
    legend = tuple(Entry(f"after {stage}", *_stage_style(stage)) for stage in _stages(evaluations))
    panels = []
    for suite in sorted({evaluation.suite for evaluation in evaluations}):
        found = [evaluation for evaluation in evaluations if evaluation.suite == suite]
        lines = [_stage_line(place, stage, [e for e in found if e.stage == stage]) for place, stage in enumerate(_stages(found))]
        ticks = sorted({evaluation.turn for evaluation in found})
        axis = {"title": {"text": "iteration"}, "tickvals": ticks, "range": [ticks[0] - 0.25, ticks[-1] + 0.35]}
        panels.append(Panel(f"Suite {suite}", "Success after each stage, with 95 % intervals", figure(lines, axis, SHARE_AXIS), legend))
    return panels


def hops_plots(data: ReportData) -> list[Panel]:
    """Success by hops after each stage with 95 % intervals, one panel per suite and iteration."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is not None]
    hover = "%{x}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}<br>%{customdata[2]} judged, %{customdata[3]} invalid"
    legend = tuple(Entry(f"after {stage}", _stage_style(stage)[0], None) for stage in _stages(evaluations))
    panels = []
    for suite, turn in sorted({(evaluation.suite, evaluation.turn) for evaluation in evaluations}):
        found = [evaluation for evaluation in evaluations if (evaluation.suite, evaluation.turn) == (suite, turn)]
        drawn = []
        for stage in _stages(found):
            own = sorted((e for e in found if e.stage == stage and e.success is not None), key=lambda e: e.hops or 0)
            labels = [hop_label(evaluation.hops) for evaluation in own]
            drawn.append(_bars(f"after {stage}", _stage_style(stage)[0], labels, hover, _success(own, "invalid")))
        tasks = sum(evaluation.tasks for evaluation in found if evaluation.stage == _stages(found)[-1])
        axis = _hop_axis(evaluation.hops for evaluation in found)
        panels.append(Panel(f"Iteration {turn}", f"Suite {suite}, {tasks:,} held-out tasks", figure(drawn, axis, SHARE_AXIS), legend))
    return panels


def frontier_plots(data: ReportData) -> list[Panel]:
    """RL tasks by how often they were solved: one panel per iteration, one bar per number of hops."""
    hover = "%{x}: %{y:.1%}, %{customdata[0]:,} of %{customdata[1]:,} tasks"
    legend = tuple(Entry(f"{name} solved", colour, None) for name, colour in _SOLVED)
    panels = []
    for turn in sorted({depth["wheel_turn"] for depth in data.frontier}):
        depths = [depth for depth in data.frontier if depth["wheel_turn"] == turn]
        labels = [hop_label(depth["hops"]) for depth in depths]
        drawn = [_bars(f"{name} solved", colour, labels, hover, _shares(depths, name, "tasks", name, "tasks")) for name, colour in _SOLVED]
        tasks, sometimes = (sum(depth[name] for depth in depths) for name in ("tasks", "sometimes"))
        note = f"{sometimes:,} of the {tasks:,} tasks were solved in some attempts and not in others"
        stacked = figure(drawn, _hop_axis(depth["hops"] for depth in depths), SHARE_AXIS, barmode="stack")
        panels.append(Panel(f"Iteration {turn}", note, stacked, legend))
    return panels


def tool_plots(data: ReportData) -> list[Panel]:
    """Tool calls per trajectory, over RL steps and by stage, and the share that succeeded."""

    def panel(title: str, note: str, over: str, under: str, hover: str, yaxis: dict[str, Any]) -> Panel:
        drawn = []
        for place, tool in enumerate(sorted({use["tool"] for use in data.tools})):
            uses = [use for use in data.tools if use["tool"] == tool]
            values = _shares(uses, over, under, "calls")
            drawn.append(_bars(tool, COLOURS[place % len(COLOURS)], list(map(_stage_label, uses)), hover, values))
        return Panel(title, f"{note}; point at a bar for the tool", figure(drawn, {"type": "category"}, yaxis))

    panels, shares = _metric_panels(own_curves(data, "rl"), _TOOLS), "%{x}: %{y:.1%} of %{customdata[0]:,}"
    if data.tools:
        hover, yaxis = "%{x}: %{y:.2f}, %{customdata[0]:,} calls", {"rangemode": "tozero"}
        panels.append(panel("Calls per trajectory", "By turn and stage", "calls", "trajectories", hover, yaxis))
        panels.append(panel("Calls that worked", "Share by turn and stage", "ok", "calls", shares, SHARE_AXIS))
    return panels


def _stage_line(place: int, stage: str, evaluations: Sequence[Evaluation]) -> go.Scatter:
    """Success after one stage over the iterations, shifted slightly so that error bars do not overlap."""
    colour, dash = _stage_style(stage)
    return go.Scatter(
        x=[evaluation.turn + 0.05 * place for evaluation in evaluations],
        mode="lines+markers",
        line={"color": colour, "width": 2.2, "dash": dash},
        **_success(evaluations, "turn"),
        hovertemplate="iteration %{customdata[3]}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}, "
        f"%{{customdata[2]}} judged<extra>after {safe(stage)}</extra>",
    )


def figure(traces: Sequence[go.Scatter | go.Bar], xaxis: dict[str, Any], yaxis: dict[str, Any], barmode: str = "group") -> dict[str, Any]:
    """Return a figure as Plotly's JSON, without the colours that the page sets."""
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


def _bars(name: str, colour: str, x: Sequence[str], hover: str, values: Mapping[str, Any]) -> go.Bar:
    """Bars of one colour at the categories `x`. `values` holds heights `y`, `customdata` for the template `hover`, and error bars."""
    marker = {"color": colour, "line": {"width": 0}, "cornerradius": 3}
    return go.Bar(x=x, marker=marker, hovertemplate=f"{hover}<extra>{safe(name)}</extra>", **values)


def _shares(rows: Sequence[Row], part: str, whole: str, *shown: str) -> dict[str, Any]:
    """Ratio of two columns, with columns to show on hover."""
    return {"y": [row[part] / row[whole] for row in rows], "customdata": [[row[name] for name in shown] for row in rows]}


def _success(evaluations: Sequence[Evaluation], last: str) -> dict[str, Any]:
    """Success with its interval as error bars; the hover data are the interval, the judged trajectories and the field `last`."""
    y = [evaluation.success or 0.0 for evaluation in evaluations]
    up = [(evaluation.high or 0.0) - height for evaluation, height in zip(evaluations, y, strict=True)]
    down = [height - (evaluation.low or 0.0) for evaluation, height in zip(evaluations, y, strict=True)]
    whiskers = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 3}
    return {"y": y, "error_y": whiskers, "customdata": [[e.low, e.high, e.judged, getattr(e, last)] for e in evaluations]}


def _stages(evaluations: Sequence[Evaluation]) -> list[str]:
    return sorted({evaluation.stage for evaluation in evaluations}, key=stage_order)


def _stage_style(stage: str) -> tuple[str, str]:
    return _STAGES.get(stage, (COLOURS[3], "solid"))


def _stage_label(row: Row) -> str:
    return f"{row['wheel_turn']} · {safe(row['stage'])}"


def hop_label(hops: int | None) -> str:
    return "1 hop" if hops == 1 else f"{hops or 0} hops"


def _hop_axis(hops: Iterable[int | None]) -> dict[str, Any]:
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [hop_label(number) for number in sorted({hop or 0 for hop in hops})],
    }


def safe(text: str) -> str:
    """Escape lake text for a label: Plotly interprets some HTML in labels, and braces in templates."""
    return escape(text).replace("%{", "% {")
