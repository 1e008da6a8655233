"""The report's tables, as text in cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flows.report.data import Evaluation, ReportData, Row, wheel_evaluations
from flows.report.plots import compared_runs, variant_name
from flows.report.questions import GraphShape
from flows.report.summary import MonitoredMetric, limit_words
from flows.report.yields import COMMON, PartYield, counted_words
from flows.results import percent
from flows.variants import Variant
from synth.graph.knowledge_graph import Topology


class Cell(NamedTuple):
    """A value, with small print after it."""

    text: str
    aside: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a header; the first `words` columns hold words, the others numbers."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def iterations_table(data: ReportData) -> Table | None:
    """The iterations side by side, one column each."""
    if not data.iterations:
        return None
    last = {(e.turn, e.suite): e for e in wheel_evaluations(data) if e.hops is None}  # ordered by stage: the last one stays
    promoted = {decision["wheel_turn"]: "promoted" if decision["promoted"] else "kept back" for decision in data.lineage.decisions}
    seconds = [{part["stage"]: part["seconds"] for part in turn["ran"] or ()} for turn in data.iterations]
    stages = [stage for stage in ("synth", "cpt", "sft", "rl", "eval") if any(stage in spent for spent in seconds)]

    def counts(column: str) -> list[Cell]:
        return [Cell(f"{turn[column]:,}") for turn in data.iterations]

    numbers = [turn["wheel_turn"] for turn in data.iterations]
    lines = [
        *((f"success, {suite}", [_success(last.get((turn, suite))) for turn in numbers]) for suite in sorted({suite for _, suite in last})),
        ("gate", [Cell(promoted.get(turn, "–")) for turn in numbers]),
        ("horizon", [Cell(_horizons(data, turn)) for turn in numbers]),
        ("training examples", counts("examples")),
        ("trajectories of RL", counts("sampled")),
        ("of evaluations", counts("evaluated")),
        ("invalid", [_invalid(turn) for turn in data.iterations]),
        ("tokens of actions", counts("action_tokens")),
        ("tokens of observations", counts("observation_tokens")),
        *((f"time, {stage}", [Cell(duration(spent.get(stage))) for spent in seconds]) for stage in stages),
    ]
    head = ("", *(f"turn {turn}" for turn in numbers))
    return Table("The turns side by side", head, tuple((Cell(name), *cells) for name, cells in lines))


def metrics_table(metrics: Sequence[MonitoredMetric]) -> Table | None:
    """Every limit on a metric, and whether it was kept."""
    if not metrics:
        return None
    head = ("metric", "turn", "limit", "worst", "last", "state")
    return Table("Monitored metrics and their limits", head, tuple(map(_metric, metrics)), words=3)


def tools_table(data: ReportData) -> Table | None:
    """The use of tools by iteration and stage, with latencies."""
    if not data.tools:
        return None
    head = ("tool", "turn", "stage", "calls", "a trajectory", "worked", "retries", "median", "95 %")
    lines = [
        (use["tool"], str(use["wheel_turn"]), use["stage"], f"{use['calls']:,}", f"{use['calls'] / use['trajectories']:.2f}",
         percent(use["ok"] / use["calls"]), f"{use['retries']:,}", duration(use["p50"]), duration(use["p95"]))
        for use in data.tools
    ]  # fmt: skip
    return Table("Calls of tools", head, tuple(tuple(map(Cell, line)) for line in lines), words=3)


def graphs_table(graphs: Sequence[GraphShape]) -> Table | None:
    """The knowledge graphs side by side, one column per source of facts."""
    if not graphs:
        return None
    lines: list[tuple[str, Callable[[Topology], Cell]]] = [
        ("entities", lambda shape: Cell(f"{shape.entities:,}")),
        ("facts that a document states", lambda shape: Cell(percent(shape.stated / shape.facts), f"of {shape.facts:,}")),
        ("components", lambda shape: Cell(f"{len(shape.components):,}", f"largest {percent(shape.largest_share)}")),
        ("facts an entity", lambda shape: Cell(f"{shape.mean_degree:.1f}", f"99 % have {shape.degrees[99]:,} at most")),
        ("hubs", lambda shape: Cell(", ".join(hub.entity for hub in shape.hubs[:3]), f"{shape.hubs[0].degree:,} facts at the most")),
        ("dead ends", lambda shape: Cell(percent(shape.dead_ends / shape.entities), "no fact is about them")),
    ]
    rows = [
        (Cell(name), *(Cell("–", "too large") if one.topology is None else cell_of(one.topology) for one in graphs))
        for name, cell_of in lines
    ]
    return Table("The knowledge graphs", ("", *(graph.source or "facts" for graph in graphs)), tuple(rows))


def yields_table(yields: Sequence[PartYield]) -> Table | None:
    """The parts of synthesis: what the teacher used, what was made, dropped and counted."""
    if not yields:
        return None
    rows = [
        (
            *map(Cell, (part.part, part.run, counted_words(part.figures))),
            *(Cell(f"{part.figures[name]:,.0f}" if name in part.figures else "–") for name in COMMON),
        )
        for part in yields
    ]
    return Table("Synthesis, part by part", ("part", "run", "counted", *COMMON), tuple(rows), words=3)


def line_table(data: ReportData) -> Table | None:
    """The promoted policy and its ancestors: training data and success."""
    if not data.lineage.line:
        return None
    success = {(e.policy, e.suite): e for e in data.evaluations if e.hops is None}
    suites = sorted({suite for _, suite in success})
    lines = [
        (Cell(policy.id, "promoted" if policy.promoted else ""),
         Cell(", ".join(f"{count:,} {kind}" for kind, count in policy.items) or "–"),
         Cell("–" if policy.snapshot is None else str(policy.snapshot)), *(_success(success.get((policy.id, suite))) for suite in suites))
        for policy in data.lineage.line
    ]  # fmt: skip
    return Table("The promoted policy and its ancestors", ("policy", "trained on", "snapshot", *suites), tuple(lines), words=2)


def curricula_table(data: ReportData) -> Table | None:
    """Success of compared curricula."""
    names = {run.policy: variant_name(run) for run in compared_runs(data) if run.policy}
    found = [e for e in data.evaluations if e.hops is None and e.policy in names]
    lines = [(Cell(names[e.policy]), Cell(str(e.turn)), Cell(e.suite), _success(e), Cell(f"{e.tasks:,}")) for e in found]
    return Table("Success by curriculum", ("curriculum", "turn", "suite", "success", "tasks"), tuple(lines), words=3) if lines else None


def duration(seconds: float | None) -> str:
    """A time in a suitable unit; a dash where it is unknown."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def _success(evaluation: Evaluation | None) -> Cell:
    if evaluation is None or evaluation.success is None:
        return Cell("–")
    return Cell(percent(evaluation.success), f"{100 * (evaluation.low or 0):.1f} – {100 * (evaluation.high or 0):.1f}")


def _invalid(turn: Row) -> Cell:
    trajectories = turn["sampled"] + turn["evaluated"]
    return Cell(percent(turn["invalid"] / trajectories if trajectories else None), f"{turn['invalid']:,}")


def _horizons(data: ReportData, turn: int) -> str:
    found = [run.rounds for run in data.runs if run.stage == "rl" and run.wheel_turn == turn and run.variant not in list(Variant)]
    return " → ".join(map(str, found[-1])) if found and found[-1] else "–"


def _metric(metric: MonitoredMetric) -> tuple[Cell, ...]:
    broken = metric.alerts
    state = Cell("kept") if not broken else Cell(f"broken {len(broken)}×", f"from step {broken[0].since}")
    words = limit_words(metric.limit).removeprefix("Limit: ").removesuffix(".")
    texts = (metric.limit.sign, str(metric.run.wheel_turn), words, f"{metric.worst:.3g}", f"{metric.last:.3g}")
    return (*map(Cell, texts), state)
