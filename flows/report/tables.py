"""The report's tables: text in cells, ready to be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flows.report.data import Evaluation, ReportData
from flows.report.iterations import Ancestor, Iteration
from flows.report.plots import variant_name
from flows.report.summary import MonitoredMetric, limit_words, wheel_evaluations
from flows.report.yields import COMMON, PartYield, counted_words
from flows.results import percent
from flows.variants import HORIZONS, Variant
from synth.graph.knowledge_graph import Topology


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a cell: a value, and beside it in small print what belongs to it."""

    text: str
    aside: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a row of heads; the first `words` columns hold words, the others numbers, which stand at the right."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def iterations_table(data: ReportData) -> Table | None:
    """The turns side by side: a column for each."""
    if not data.iterations:
        return None
    last = {(e.turn, e.suite): e for e in wheel_evaluations(data) if e.hops is None}  # in the order of stages: the last one stays
    suites = sorted({suite for _, suite in last})
    decisions = {decision.wheel_turn: decision for decision in data.lineage.decisions}
    lines: list[tuple[str, Callable[[Iteration], Cell]]] = [
        *((f"success, {suite}", lambda turn, suite=suite: _success(last.get((turn.wheel_turn, suite)))) for suite in suites),
        ("gate", lambda turn: _decision(decisions[turn.wheel_turn].promoted if turn.wheel_turn in decisions else None)),
        ("horizon", lambda turn: Cell(_horizons(data, turn.wheel_turn))),
        ("training examples", lambda turn: Cell(f"{turn.examples:,}")),
        ("trajectories of RL", lambda turn: Cell(f"{turn.sampled:,}")),
        ("of evaluations", lambda turn: Cell(f"{turn.evaluated:,}")),
        ("invalid", lambda turn: Cell(percent(turn.invalid / turn.trajectories if turn.trajectories else None), f"{turn.invalid:,}")),
        ("tokens of actions", lambda turn: Cell(f"{turn.action_tokens:,}")),
        ("tokens of observations", lambda turn: Cell(f"{turn.observation_tokens:,}")),
        *((f"time, {stage}", lambda turn, stage=stage: Cell(duration(turn.seconds.get(stage)))) for stage in _stages(data.iterations)),
    ]
    head = ("", *(f"turn {turn.wheel_turn}" for turn in data.iterations))
    return Table("The turns side by side", head, tuple((Cell(name), *map(cell_of, data.iterations)) for name, cell_of in lines))


def metrics_table(metrics: Sequence[MonitoredMetric]) -> Table | None:
    """Every limit on a metric: how far the metric went, and whether the limit was kept."""
    if not metrics:
        return None
    head = ("metric", "turn", "limit", "worst", "last", "state")
    return Table("Monitored metrics and their limits", head, tuple(map(_metric, metrics)), words=3)


def tools_table(data: ReportData) -> Table | None:
    """The use of tools by turn and stage, with the times that calls took."""
    if not data.tools:
        return None
    head = ("tool", "turn", "stage", "calls", "a trajectory", "worked", "retries", "median", "95 %")
    lines = [
        (use.tool, str(use.wheel_turn), use.stage, f"{use.calls:,}", f"{use.calls_each:.2f}", percent(use.ok / use.calls),
         f"{use.retries:,}", duration(use.p50), duration(use.p95))
        for use in data.tools
    ]  # fmt: skip
    return Table("Calls of tools", head, tuple(tuple(map(Cell, line)) for line in lines), words=3)


def graphs_table(data: ReportData) -> Table | None:
    """The knowledge graphs side by side: a column for each source of facts."""
    if not data.graphs:
        return None
    lines: list[tuple[str, Callable[[Topology], Cell]]] = [
        ("entities", lambda shape: Cell(f"{shape.entities:,}")),
        ("facts that a document states", lambda shape: Cell(percent(shape.stated / shape.facts), f"of {shape.facts:,}")),
        ("components", lambda shape: Cell(f"{len(shape.components):,}", f"largest {percent(shape.largest_share)}")),
        ("facts an entity", lambda shape: Cell(f"{shape.mean_degree:.1f}", f"99 % have {shape.degrees[99]:,} at most")),
        ("hubs", lambda shape: Cell(", ".join(hub.entity for hub in shape.hubs[:3]), f"{shape.hubs[0].degree:,} facts at the most")),
        ("dead ends", lambda shape: Cell(percent(shape.dead_ends / shape.entities), "no fact is about them")),
    ]
    head = ("", *(graph.source or "facts" for graph in data.graphs))
    rows = [
        (Cell(name), *(Cell("–", "too large") if one.topology is None else cell_of(one.topology) for one in data.graphs))
        for name, cell_of in lines
    ]
    return Table("The knowledge graphs", head, tuple(rows))


def yields_table(data: ReportData) -> Table | None:
    """The parts of synthesis: requests, completions, tokens and seconds of the teacher; made, dropped, and what else was counted."""
    if not data.yields:
        return None
    rows = [(*map(Cell, (part.part, part.run, counted_words(part.figures))), *_common(part)) for part in data.yields]
    return Table("Synthesis, part by part", ("part", "run", "counted", *COMMON), tuple(rows), words=3)


def _common(part: PartYield) -> tuple[Cell, ...]:
    return tuple(Cell(f"{part.figures[name]:,.0f}" if name in part.figures else "–") for name in COMMON)


def line_table(data: ReportData) -> Table | None:
    """The line of the promoted policy, from its first ancestor on: what each was trained on and what it brought on the main suite."""
    if not data.lineage.line:
        return None
    success = {(e.policy, e.suite): e for e in data.evaluations if e.hops is None}
    suites = sorted({suite for _, suite in success})
    head = ("policy", "trained on", "snapshot", *suites)
    lines = [
        (_policy(policy), Cell(_items(policy)), Cell("–" if policy.snapshot is None else str(policy.snapshot)),
         *(_success(success.get((policy.id, suite))) for suite in suites))
        for policy in data.lineage.line
    ]  # fmt: skip
    return Table("The promoted policy and its ancestors", head, tuple(lines), words=2)


def curricula_table(data: ReportData) -> Table | None:
    """Success of curricula that stand against each other; None where there is nothing to compare."""
    turns = {run.wheel_turn for run in data.runs if run.stage == "rl" and run.variant in HORIZONS}
    runs = [run for run in data.runs if run.stage == "rl" and run.wheel_turn in turns and run.variant != Variant.WITHOUT_CPT]
    names = {run.policy: variant_name(run) for run in runs if run.policy}
    found = [e for e in data.evaluations if e.hops is None and e.policy in names]
    lines = [(Cell(names[e.policy]), Cell(str(e.turn)), Cell(e.suite), _success(e), Cell(f"{e.tasks:,}")) for e in found]
    return Table("Success by curriculum", ("curriculum", "turn", "suite", "success", "tasks"), tuple(lines), words=3) if lines else None


def duration(seconds: float | None) -> str:
    """A time in the unit that suits it; a dash where it is not known."""
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


def _decision(promoted: bool | None) -> Cell:
    return Cell({True: "promoted", False: "kept back", None: "–"}[promoted])


def _horizons(data: ReportData, turn: int) -> str:
    found = [run.rounds for run in data.runs if run.stage == "rl" and run.wheel_turn == turn and run.variant not in list(Variant)]
    return " → ".join(map(str, found[-1])) if found and found[-1] else "–"


def _stages(turns: Sequence[Iteration]) -> list[str]:
    order = ("synth", "cpt", "sft", "rl", "eval")
    return [stage for stage in order if any(stage in turn.seconds for turn in turns)]


def _metric(metric: MonitoredMetric) -> tuple[Cell, ...]:
    broken = metric.alerts
    state = Cell("kept") if not broken else Cell(f"broken {len(broken)}×", f"from step {broken[0].since}")
    words = limit_words(metric.limit).removeprefix("Limit: ").removesuffix(".")
    texts = (metric.limit.sign, str(metric.run.wheel_turn), words, f"{metric.worst:.3g}", f"{metric.last:.3g}")
    return (*map(Cell, texts), state)


def _policy(policy: Ancestor) -> Cell:
    return Cell(policy.id, "promoted" if policy.promoted else "")


def _items(policy: Ancestor) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in policy.items) or "–"
