"""The report's plots, section by section: which figures stand in which panel, and the note under its title."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from flows.report.data import Collected, Curve, Evaluation, ReportData, RunFacts, stage_order
from flows.report.iterations import FrontierDepth, ToolUse
from flows.report.panels import (
    COLOURS,
    DASHES,
    SHARE_AXIS,
    Bar,
    Entry,
    Panel,
    Plots,
    bars,
    figure,
    gather,
    hop_axis,
    hop_label,
    is_beside_success,
    lines_panel,
    named_panels,
)
from flows.report.panels import label as safe
from flows.report.summary import MonitoredMetric, limit_words, wheel_evaluations
from flows.variants import HORIZONS, Variant

_STAGE_COLOURS = {"init": "#8b9099", "cpt": "#4c82d9", "sft": "#d9772e", "rl": "#2b9a78"}
_VARIANT_NAMES = {"scaling": "ScalingInter", "fixed_first": "fixed at the first horizon", "fixed_last": "fixed at the last horizon"}
_SOLVED = (("always", "#2b9a78"), ("sometimes", "#d9a52e"), ("never", "#8b9099"))


def iteration_plots(data: ReportData) -> Plots:
    """The turns side by side: success after each stage, one panel a suite, a line for each stage over the turns."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is None and evaluation.success is not None]
    if len({evaluation.turn for evaluation in evaluations}) < 2:
        return Plots()
    suites = sorted({evaluation.suite for evaluation in evaluations})
    panels = [_turns_panel(suite, [e for e in evaluations if e.suite == suite]) for suite in suites]
    legend = tuple(Entry(f"after {stage}", _stage_colour(stage), _stage_dash(stage)) for stage in _stages(evaluations))
    return Plots(legend, tuple(panels))


def hops_plots(data: ReportData) -> Plots:
    """Success by hops after each stage: one panel a suite and turn, bars with 95 % intervals."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is not None]
    places = sorted({(evaluation.suite, evaluation.turn) for evaluation in evaluations})
    panels = [_hops_panel(suite, turn, [e for e in evaluations if (e.suite, e.turn) == (suite, turn)]) for suite, turn in places]
    return Plots(tuple(Entry(f"after {stage}", _stage_colour(stage), None) for stage in _stages(evaluations)), tuple(panels))


def reinforcement_plots(data: ReportData) -> Plots:
    """Reward, success, horizon, turns and depth over the steps of RL, a line for each turn of the wheel."""
    titles = {
        "reward": ("Reward", "Mean over the valid trajectories of a step"),
        "success": ("Success in training", "Share of the valid trajectories of a step"),
        **_beside_titles(data),
        "horizon": ("Horizon", "Turns that a trajectory may take"),
        "turns": ("Turns taken", "Mean of a trajectory"),
        "truncated": ("Ended by the horizon", "Share of the valid trajectories of a step"),
        "hops": ("Depth of the tasks", "Mean hops of what a step drew"),
    }
    return named_panels(_own(data, "rl"), titles, _turn_entry)


def _beside_titles(data: ReportData) -> dict[str, tuple[str, str]]:
    """Titles of the success on each suite that was tried beside training."""
    names = sorted({curve.name for curve in _own(data, "rl") if is_beside_success(curve.name)})
    note = "Share of the valid, by the weights that it was begun under; no evaluation of the finished policy"
    return {name: (f"{name.split('/', 1)[1].rsplit('/', 1)[0]} beside training", note) for name in names}


def speed_plots(data: ReportData) -> Plots:
    """Where the time of RL's steps went, tokens a second, share of the peak and memory, over the steps."""
    titles = {
        "share/rollouts": ("Time in rollouts", "Share of a step in which the learner waited for trajectories"),
        "share/learning": ("Time in learning", "Share of a step"),
        "share/waiting": ("Time in waiting", "Share of a step for rewards, filters and the lake"),
        "share/sync": ("Time in weight sync", "Share of a step"),
        "sampled_tokens_per_second": ("Sampled tokens a second", "Of the whole step"),
        "learner_tokens_per_second": ("Learnt tokens a second", "While the learner has its turn, observations included"),
        "mfu": ("Share of the peak", "Model FLOP/s of the learner by its hardware's (PaLM's MFU)"),
        "learner_memory_gib": ("Memory of the learner", "GiB at the most, of the worker that held most"),
    }
    return named_panels(_own(data, "rl"), titles, _turn_entry)


def reward_plots(data: ReportData) -> Plots:
    """What each part of the reward brings, weight times value, over the steps of RL; empty where rewards have one part."""
    curves = [curve for curve in _own(data, "rl") if curve.name.startswith("reward_part/")]
    names = list(dict.fromkeys(curve.name for curve in curves))
    titles = {name: (name.split("/", 1)[1], "Weight times value, mean of a step") for name in names}
    return named_panels(curves, titles, _turn_entry) if len(names) > 1 else Plots()


def frontier_plots(data: ReportData) -> Plots:
    """The tasks of RL by how often they were solved: one panel a turn, a bar for each depth."""
    turns = sorted({depth.wheel_turn for depth in data.frontier})
    panels = [_frontier_panel(turn, [depth for depth in data.frontier if depth.wheel_turn == turn]) for turn in turns]
    return Plots(tuple(Entry(f"{name} solved", colour, None) for name, colour in _SOLVED), tuple(panels))


def loss_plots(data: ReportData) -> Plots:
    """The loss of every stage over its steps, a line for each turn of the wheel and each variant of it."""
    named = {"cpt": "Loss of pre-training", "sft": "Loss of the cold start", "rl": "Loss of RL"}
    curves = [curve for stage in named for curve in _own(data, stage)]
    notes = {
        "cpt": "Per token, plans, decisions and documents",
        "sft": "Per action token, observations masked",
        "rl": "Policy gradient surrogate",
    }
    panels = [
        lines_panel(title, notes[stage], [curve for curve in curves if curve.run.stage == stage and curve.name == "loss"], _turn_entry)
        for stage, title in named.items()
    ]
    return gather(panels, [_turn_entry(curve) for curve in curves if curve.name == "loss"])


def health_plots(data: ReportData, metrics: Sequence[MonitoredMetric]) -> Plots:
    """Monitored metrics over the steps of RL with their limits and where these were broken, and the share of invalid trajectories."""
    titles = {
        "sampled_entropy": ("Entropy as sampled", "Of the policy's actions, in nats a token; a fall to zero ends exploration"),
        "entropy": ("Entropy", "Of the tokens that were trained on, in nats"),
        "logprob_difference": ("Engine against learner", "Largest difference of log-probabilities; near zero while weights agree"),
        "token_mult_prob_error": ("Error a token", "Mean of e to the |difference| of engine and learner; 1 where they agree"),
        "grad_norm": ("Gradient norm", "Before clipping"),
        "valid": ("Valid trajectories", "Those without a fault of an engine, tool or environment"),
        "zero_variance": ("Groups without variance", "Share of groups whose rewards are all equal: they teach nothing"),
        "effective_samples": ("Effective samples", "Share of the tokens that the importance ratios leave"),
        "correct_logprob": ("Likelihood of successes", "Mean log-probability of their tokens; its decay comes before collapse"),
        "format": ("Readable actions", "Share that held a call or an answer"),
        "tool_success": ("Tool calls that worked", "Share of a step's calls"),
        "prompt_information": ("Prompt information", "How much first actions say of their prompts; 0 is one template for all"),
        "staleness": ("Staleness", "Versions of the weights that a token is behind the newest"),
    }
    curves = _own(data, "rl")
    panels: list[Panel | None] = []
    for name, (title, note) in titles.items():
        found = [metric for metric in metrics if metric.limit.sign == name]
        limit = found[-1].limit if found else None
        shown = [curve for curve in curves if curve.name == name]
        note = f"{note}. {limit_words(limit)}" if limit else note
        panels.append(lines_panel(title, note, shown, _turn_entry, limit, [alert for metric in found for alert in metric.alerts]))
    return gather([*panels, _invalid_panel(data.collected)], [_turn_entry(curve) for curve in curves if curve.name in titles])


def tool_plots(data: ReportData) -> Plots:
    """Calls a trajectory, over the steps of RL and by stage, and the share of calls that worked."""
    steps = named_panels(_own(data, "rl"), {"tool_calls": ("Tool calls in RL", "Mean of a trajectory, by step")}, _turn_entry)
    if not data.tools:
        return steps
    each = _tool_panel(
        "Calls a trajectory",
        "By turn and stage; point at a bar for the tool",
        data.tools,
        lambda use: Bar(_place(use), use.calls_each, (use.calls,)),
        "%{x}: %{y:.2f}, %{customdata[0]:,} calls",
        {"rangemode": "tozero"},
    )
    worked = _tool_panel(
        "Calls that worked",
        "Share by turn and stage; point at a bar for the tool",
        data.tools,
        lambda use: Bar(_place(use), use.ok / use.calls, (use.calls,)),
        "%{x}: %{y:.1%} of %{customdata[0]:,}",
        SHARE_AXIS,
    )
    return Plots(steps.legend, (*steps.panels, each, worked))


def curriculum_plots(data: ReportData) -> Plots:
    """The growing horizon against fixed ones; empty where the lake holds no run to compare."""
    turns = {run.wheel_turn for run in data.runs if run.stage == "rl" and run.variant in HORIZONS}
    runs = {run.id for run in data.runs if run.stage == "rl" and run.wheel_turn in turns and run.variant != Variant.WITHOUT_CPT}
    curves = [curve for curve in data.curves if curve.run.id in runs]
    titles = {
        "success": ("Success in training", "Share of the valid trajectories of a step"),
        "turns": ("Turns taken", "Mean of a trajectory"),
        "horizon": ("Horizon", "Turns that a trajectory may take"),
    }
    return named_panels(curves, titles, _variant_entry)


def pretraining_plots(data: ReportData) -> Plots:
    """SFT and RL with pre-training before them and without it; empty where the lake holds no run without."""
    skipped = {(run.wheel_turn, run.stage) for run in data.runs if run.variant == Variant.WITHOUT_CPT}
    curves = [c for c in data.curves if (c.run.wheel_turn, c.run.stage) in skipped and c.run.variant not in HORIZONS]
    titles = {
        ("sft", "loss"): ("Loss of the cold start", "Per action token, observations masked"),
        ("rl", "success"): ("Success in RL", "Share of the valid trajectories of a step"),
    }
    panels: list[Panel | None] = []
    for turn, stage, name in sorted({(curve.run.wheel_turn, *key) for curve in curves for key in titles}):
        found = [c for c in curves if (c.run.wheel_turn, c.run.stage, c.name) == (turn, stage, name)]
        title, note = titles[stage, name]
        panels.append(lines_panel(f"{title}, turn {turn}", note, found, _pretraining_entry))
    return gather(panels, [_pretraining_entry(curve) for curve in curves])


def variant_name(run: RunFacts) -> str:
    """What a curriculum is called, with its horizons."""
    name = _VARIANT_NAMES.get(run.variant or "scaling", run.variant or "")
    return f"{name} ({', '.join(map(str, run.rounds))})" if run.rounds else name


def _own(data: ReportData, stage: str) -> list[Curve]:
    """Curves of the wheel's own runs of a stage."""
    return [curve for curve in data.curves if curve.run.stage == stage and curve.run.variant not in list(Variant)]


def _turn_entry(curve: Curve) -> Entry:
    place = curve.run.wheel_turn - 1
    return Entry(f"turn {curve.run.wheel_turn}", COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)])


def _variant_entry(curve: Curve) -> Entry:
    order = ("scaling", *HORIZONS)
    variant = curve.run.variant or "scaling"
    place = order.index(variant) if variant in order else len(order)
    colours = (_STAGE_COLOURS["rl"], *COLOURS[:2], COLOURS[3])
    return Entry(variant_name(curve.run), colours[place], DASHES[place])


def _pretraining_entry(curve: Curve) -> Entry:
    if curve.run.variant == Variant.WITHOUT_CPT:
        return Entry("without pre-training", _STAGE_COLOURS["init"], "dash")
    return Entry("with pre-training", _STAGE_COLOURS["cpt"], "solid")


def _stages(evaluations: Sequence[Evaluation]) -> list[str]:
    return sorted({evaluation.stage for evaluation in evaluations}, key=stage_order)


def _stage_colour(stage: str) -> str:
    return _STAGE_COLOURS.get(stage, COLOURS[3])


def _stage_dash(stage: str) -> str:
    return {"init": "dot", "cpt": "dash", "sft": "dashdot"}.get(stage, "solid")


def _turns_panel(suite: str, evaluations: Sequence[Evaluation]) -> Panel:
    stages = _stages(evaluations)
    lines = [_turns_line(stage, 0.05 * place, [e for e in evaluations if e.stage == stage]) for place, stage in enumerate(stages)]
    turns = sorted({evaluation.turn for evaluation in evaluations})
    axis = {"title": {"text": "turn"}, "tickvals": turns, "range": [turns[0] - 0.25, turns[-1] + 0.35]}
    return Panel(f"Suite {suite}", "Success after each stage, with 95 % intervals", figure(lines, axis, SHARE_AXIS))


def _turns_line(stage: str, shift: float, evaluations: Sequence[Evaluation]) -> go.Scatter:
    """One stage over the turns, shifted a little, so that the whiskers of stages do not hide each other."""
    success = [evaluation.success or 0.0 for evaluation in evaluations]
    return go.Scatter(
        x=[evaluation.turn + shift for evaluation in evaluations],
        y=success,
        mode="lines+markers",
        line={"color": _stage_colour(stage), "width": 2.2, "dash": _stage_dash(stage)},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [(evaluation.high or 0.0) - share for evaluation, share in zip(evaluations, success, strict=True)],
            "arrayminus": [share - (evaluation.low or 0.0) for evaluation, share in zip(evaluations, success, strict=True)],
            "thickness": 1.2,
            "width": 3,
        },
        customdata=[[evaluation.low, evaluation.high, evaluation.judged, evaluation.turn] for evaluation in evaluations],
        hovertemplate="turn %{customdata[3]}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}, %{customdata[2]} judged"
        f"<extra>after {safe(stage)}</extra>",
    )


def _hops_panel(suite: str, turn: int, evaluations: Sequence[Evaluation]) -> Panel:
    stages = _stages(evaluations)
    drawn = [_hop_bars(stage, [e for e in evaluations if e.stage == stage and e.success is not None]) for stage in stages]
    axis = hop_axis(evaluation.hops for evaluation in evaluations if evaluation.hops is not None)
    tasks = sum(evaluation.tasks for evaluation in evaluations if evaluation.stage == stages[-1])
    return Panel(f"Turn {turn}", f"Suite {suite}, {tasks:,} held-out tasks", figure(drawn, axis, SHARE_AXIS))


def _hop_bars(stage: str, evaluations: Sequence[Evaluation]) -> go.Bar:
    values = [
        Bar(hop_label(e.hops or 0), e.success or 0.0, (e.low, e.high, e.judged, e.invalid), e.low, e.high)
        for e in sorted(evaluations, key=lambda e: e.hops or 0)
    ]
    hover = "%{x}: %{y:.1%}<br>95 %: %{customdata[0]:.1%} to %{customdata[1]:.1%}<br>%{customdata[2]} judged, %{customdata[3]} invalid"
    return bars(f"after {stage}", _stage_colour(stage), values, hover)


def _frontier_panel(turn: int, depths: Sequence[FrontierDepth]) -> Panel:
    drawn = [
        bars(
            f"{name} solved",
            colour,
            [Bar(hop_label(depth.hops), getattr(depth, name) / depth.tasks, (getattr(depth, name), depth.tasks)) for depth in depths],
            "%{x}: %{y:.1%}, %{customdata[0]:,} of %{customdata[1]:,} tasks",
        )
        for name, colour in _SOLVED
    ]
    tasks, open_ = sum(depth.tasks for depth in depths), sum(depth.sometimes for depth in depths)
    note = f"{open_:,} of the {tasks:,} tasks were solved in some attempts and not in others"
    return Panel(f"Turn {turn}", note, figure(drawn, hop_axis(depth.hops for depth in depths), SHARE_AXIS, barmode="stack"))


def _invalid_panel(collected: Sequence[Collected]) -> Panel | None:
    if not collected:
        return None
    values = [Bar(f"{part.wheel_turn} · {safe(part.stage)}", part.invalid / part.trajectories, (part.trajectories,)) for part in collected]
    drawn = bars("invalid", _STAGE_COLOURS["init"], values, "%{x}: %{y:.1%} of %{customdata[0]:,}")
    yaxis = {"range": [0, max(0.02, 1.1 * max(bar.y for bar in values))], "tickformat": ".1~%"}
    note = "Share by turn and stage; above 2 % the figures are no result"
    return Panel("Invalid trajectories", note, figure([drawn], {"type": "category"}, yaxis))


def _place(use: ToolUse) -> str:
    return f"{use.wheel_turn} · {safe(use.stage)}"


def _tool_panel(
    title: str, note: str, tools: Sequence[ToolUse], bar_of: Callable[[ToolUse], Bar], hover: str, yaxis: dict[str, Any]
) -> Panel:
    names = sorted({use.tool for use in tools})
    drawn = [
        bars(name, COLOURS[place % len(COLOURS)], [bar_of(use) for use in tools if use.tool == name], hover)
        for place, name in enumerate(names)
    ]
    return Panel(title, note, figure(drawn, {"type": "category"}, yaxis))
