"""The report's headline and its tables, as text in cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.report.data import Evaluation, ReportData, Row, is_compared, monitored_metrics, rounds_of, stage_order, wheel_evaluations
from flows.report.plots import compared_runs, limit_words, variant_name
from flows.report.yields import COMMON, PartYield, counted_words
from flows.results import HARD_SPACE, Judged, Standing, comparison, harm, headline, percent, standings
from synth.graph.knowledge_graph import Topology


class SummaryRow(NamedTuple):
    """One stage of one iteration: its evaluation on each suite (None where there was none), and its standing on the main one."""

    turn: int
    stage: str
    policy: str
    cells: tuple[Evaluation | None, ...]
    standing: Standing | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The table of success by stage and the sentences above it: a headline, its detail, stages that did harm, unreliable evaluations."""

    headline: str
    detail: str
    harm: tuple[str, ...]
    suites: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    unreliable: tuple[str, ...]


def summarize(data: ReportData) -> Summary:
    """Success by iteration and stage, with its headline. The main suite is the one with the most attempts."""
    cells = {(e.turn, e.stage, e.suite): e for e in wheel_evaluations(data) if e.hops is None}
    attempts: dict[str, int] = {}
    for evaluation in cells.values():
        attempts[evaluation.suite] = attempts.get(evaluation.suite, 0) + evaluation.tasks
    suites = tuple(sorted(attempts, key=lambda suite: (-attempts[suite], suite)))
    places = sorted({(turn, stage) for turn, stage, _ in cells}, key=lambda place: (place[0], stage_order(place[1])))
    on_main = [judged for turn, stage in places if (judged := _judged(cells.get((turn, stage, suites[0])), data))]
    wheel = {standing.judged.policy: standing for standing in standings(on_main)}
    rows = []
    for turn, stage in places:
        found = tuple(cells.get((turn, stage, suite)) for suite in suites)
        policy = next(cell.policy for cell in found if cell)
        rows.append(SummaryRow(turn, stage, policy, found, wheel.get(policy)))
    unreliable = tuple(
        f"turn {e.turn}, {e.stage}, suite {e.suite}: {e.invalid:,} of {e.trajectories:,}"
        for e in cells.values()
        if e.invalid > LARGEST_INVALID_SHARE * e.trajectories
    )
    order = list(wheel.values())
    return Summary(headline(order), _detail(order), tuple(harm(order)), suites, tuple(rows), unreliable)


def _judged(cell: Evaluation | None, data: ReportData) -> Judged | None:
    if cell is None or cell.success is None or cell.low is None or cell.high is None:
        return None
    solved = data.verdicts.get((cell.policy, cell.suite), {})
    return Judged(cell.policy, cell.turn, cell.stage, cell.suite, cell.success, cell.low, cell.high, cell.judged, solved)


def _detail(wheel: Sequence[Standing]) -> str:
    """Where the last figure is from, and what it is compared with."""
    if not wheel:
        return "Figures appear here after the first evaluation of a stage."
    last = wheel[-1].judged
    interval = f"95{HARD_SPACE}% interval {percent(last.low)} to {percent(last.high)}"
    where = f"{last.attempts:,} judged attempts at suite {last.suite} after turn {last.turn}, {interval}."
    return f"{where} {comparison(wheel)}".strip()


Cell = str | tuple[str, str]
"""A text, perhaps with small print after it."""


class Table(NamedTuple):
    """A table with a header; the first `words` columns hold words, the others numbers."""

    name: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    words: int = 1


def iterations_table(data: ReportData) -> Table:
    """The iterations side by side, one column each."""
    last = {(e.turn, e.suite): e for e in wheel_evaluations(data) if e.hops is None}  # ordered by stage: the last one stays
    gate = {decision["wheel_turn"]: "promoted" if decision["promoted"] else "kept back" for decision in data.decisions}
    rounds = {run.wheel_turn: rounds_of(run) for run in data.runs if run.stage == "rl" and not is_compared(run)}
    seconds = {turn["wheel_turn"]: {part["stage"]: part["seconds"] for part in turn["ran"] or ()} for turn in data.iterations}
    stages = [stage for stage in ("synth", "cpt", "sft", "rl", "eval") if any(stage in spent for spent in seconds.values())]

    def counts(**columns: str) -> list[list[Cell]]:
        return [[name.replace("_", " "), *(f"{turn[column]:,}" for turn in data.iterations)] for name, column in columns.items()]

    rows: list[list[Cell]] = [
        *([f"success, {suite}", *(_success(last.get((turn, suite))) for turn in seconds)] for suite in sorted({key[1] for key in last})),
        ["gate", *(gate.get(turn, "–") for turn in seconds)],
        ["horizon", *(" → ".join(map(str, rounds.get(turn, ()))) or "–" for turn in seconds)],
        *counts(training_examples="examples", trajectories_of_RL="sampled", of_evaluations="evaluated"),
        ["invalid", *map(_invalid, data.iterations)],
        *counts(tokens_of_actions="action_tokens", tokens_of_observations="observation_tokens"),
        *([f"time, {stage}", *(duration(spent.get(stage)) for spent in seconds.values())] for stage in stages),
    ]
    return Table("The turns side by side", ("", *(f"turn {turn}" for turn in seconds)), rows if seconds else ())


def metrics_table(data: ReportData) -> Table:
    """Every limit on a metric, and whether it was kept."""
    rows = [
        (
            metric.limit.sign,
            str(metric.run.wheel_turn),
            limit_words(metric.limit).removeprefix("Limit: ").removesuffix("."),
            f"{metric.worst:.3g}",
            f"{metric.last:.3g}",
            (f"broken {len(metric.alerts)}×", f"from step {metric.alerts[0].since}") if metric.alerts else "kept",
        )
        for metric in monitored_metrics(data)
    ]
    return Table("Monitored metrics and their limits", ("metric", "turn", "limit", "worst", "last", "state"), rows, words=3)


def tools_table(data: ReportData) -> Table:
    """The use of tools by iteration and stage, with latencies."""
    head = ("tool", "turn", "stage", "calls", "a trajectory", "worked", "retries", "median", "95 %")
    rows = [
        (use["tool"], str(use["wheel_turn"]), use["stage"], f"{use['calls']:,}", f"{use['calls'] / use['trajectories']:.2f}",
         percent(use["ok"] / use["calls"]), f"{use['retries']:,}", duration(use["p50"]), duration(use["p95"]))
        for use in data.tools
    ]  # fmt: skip
    return Table("Calls of tools", head, rows, words=3)


def graphs_table(graphs: Sequence[tuple[str, Topology | None]]) -> Table:
    """The knowledge graphs side by side, one column per source of facts; None where a graph is too large."""
    lines: dict[str, Callable[[Topology], Cell]] = {
        "entities": lambda shape: f"{shape.entities:,}",
        "facts that a document states": lambda shape: (percent(shape.stated / shape.facts), f"of {shape.facts:,}"),
        "components": lambda shape: (f"{len(shape.components):,}", f"largest {percent(shape.largest_share)}"),
        "facts an entity": lambda shape: (f"{shape.mean_degree:.1f}", f"99 % have {shape.degrees[99]:,} at most"),
        "hubs": lambda shape: (", ".join(hub.entity for hub in shape.hubs[:3]), f"{shape.hubs[0].degree:,} facts at the most"),
        "dead ends": lambda shape: (percent(shape.dead_ends / shape.entities), "no fact is about them"),
    }
    rows = [[name, *(cell_of(shape) if shape else ("–", "too large") for _, shape in graphs)] for name, cell_of in lines.items()]
    return Table("The knowledge graphs", ("", *(source or "facts" for source, _ in graphs)), rows if graphs else ())


def yields_table(yields: Sequence[PartYield]) -> Table:
    """The parts of synthesis: what the teacher used, what was made, dropped and counted."""
    rows = [
        (
            part.part,
            part.run,
            counted_words(part.figures),
            *(f"{part.figures[name]:,.0f}" if name in part.figures else "–" for name in COMMON),
        )
        for part in yields
    ]
    return Table("Synthesis, part by part", ("part", "run", "counted", *COMMON), rows, words=3)


def champion_table(data: ReportData) -> Table:
    """The promoted policy and its ancestors: training data and success."""
    success = {(e.policy, e.suite): e for e in data.evaluations if e.hops is None}
    suites = sorted({suite for _, suite in success})
    rows: list[list[Cell]] = []
    for policy in data.champion:
        snapshot = "–" if policy["snapshot"] is None else str(policy["snapshot"])
        solved = [_success(success.get((policy["id"], suite))) for suite in suites]
        rows.append([(policy["id"], "promoted" if policy["promoted"] else ""), policy["trained_on"] or "–", snapshot, *solved])
    return Table("The promoted policy and its ancestors", ("policy", "trained on", "snapshot", *suites), rows, words=2)


def curricula_table(data: ReportData) -> Table:
    """Success of compared curricula."""
    names = {run.figures.get("policy"): variant_name(run) for run in compared_runs(data)}
    found = [e for e in data.evaluations if e.hops is None and e.policy in names]
    rows = [(names[e.policy], str(e.turn), e.suite, _success(e), f"{e.tasks:,}") for e in found]
    return Table("Success by curriculum", ("curriculum", "turn", "suite", "success", "tasks"), rows, words=3)


def duration(seconds: float | None) -> str:
    """A time in a suitable unit; a dash where it is unknown."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def _success(evaluation: Evaluation | None) -> Cell:
    if evaluation is None or evaluation.success is None:
        return "–"
    return percent(evaluation.success), f"{100 * (evaluation.low or 0):.1f} – {100 * (evaluation.high or 0):.1f}"


def _invalid(turn: Row) -> Cell:
    trajectories = turn["sampled"] + turn["evaluated"]
    return percent(turn["invalid"] / trajectories if trajectories else None), f"{turn['invalid']:,}"
