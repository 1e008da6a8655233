"""Writes the report: one HTML page with everything inside it, readable without a network.

Documents and actions are hostile text. The template escapes all of it, scripts put it into the page as text alone, and the page's own
policy (Content-Security-Policy) forbids it to load anything at all. JSON and scripts travel as deflated base64, which the browser inflates
when it needs them: base64 holds no character that HTML could read, so hostile text in it can close no element.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from flows.report import plots, tables
from flows.report.data import ReportData, read_report_data
from flows.report.panels import Panel, Plots
from flows.report.question_plots import question_plots
from flows.report.summary import monitored_metrics, summarize, unbroken
from flows.report.trajectories import Reading, read_trajectories
from flows.results import percent, probability, signed
from warehouse import Lake
from warehouse.drafts import drafted

CHUNK = 40
"""Trajectories whose parts are packed together: opening one inflates as many."""
_LISTED = ("id", "stage", "policy", "wheel_turn", "outcome", "n_turns", "horizon", "reward", "step", "sample", "tokens")
_READ = ("stop_reason", "error", "parts")


def build_report(lake: Lake, output: Path) -> Path:
    """Writes the report on `lake` to the file `output` (its folder is made) and gives the path back."""
    page = render(read_report_data(lake), read_trajectories(lake))
    with drafted(output) as draft:
        draft.write_text(page, encoding="utf-8", errors="replace")
    return output


@dataclass(frozen=True, slots=True)
class Section:
    """A section of plots and tables, with the anchor by which the page links to it."""

    anchor: str
    title: str
    lead: str
    plots: Plots
    table: tables.Table | None = None

    @property
    def panels(self) -> list[tuple[str, Panel]]:
        """The panels, each with the id of its place in the page."""
        return [(f"{self.anchor}-{place}", panel) for place, panel in enumerate(self.plots.panels)]


def render(data: ReportData, readings: Sequence[Reading]) -> str:
    """The page as text."""
    sections = [section for section in _sections(data) if section.panels or section.table]
    figures = {name: panel.figure for section in sections for name, panel in section.panels}
    environment = Environment(
        loader=PackageLoader("flows.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "probability": probability, "signed": signed, "unbroken": unbroken}
    return environment.get_template("page.html.jinja").render(
        data=data,
        summary=summarize(data),
        sections=sections,
        line=tables.line_table(data),
        packed={
            **({"figures": pack_json(figures), "plotly": pack(get_plotlyjs())} if figures else {}),
            **dict(_packed_readings(readings)),
        },
        shown=len(readings),
        filters=_filters(readings),
    )


def _sections(data: ReportData) -> list[Section]:
    metrics = monitored_metrics(data)
    return [
        Section(
            "turns",
            "Turns",
            "What each turn of the wheel made, sampled and cost.",
            plots.iteration_plots(data),
            tables.iterations_table(data),
        ),
        Section(
            "hops",
            "Success by hops",
            "Held-out tasks by the facts that an answer needs. Whiskers are 95 % intervals.",
            plots.hops_plots(data),
        ),
        Section(
            "learning", "Reinforcement learning", "Each step as measured, faint, under its running mean.", plots.reinforcement_plots(data)
        ),
        Section("rewards", "Reward parts", "What the reward was made of, step by step.", plots.reward_plots(data)),
        Section(
            "curriculum",
            "Curriculum",
            "The growing horizon against fixed ones, from the same start.",
            plots.curriculum_plots(data),
            tables.curricula_table(data),
        ),
        Section(
            "frontier",
            "Frontier",
            "The tasks that RL drew, by how many of at least two attempts solved them. Only what is solved sometimes teaches anything.",
            plots.frontier_plots(data),
        ),
        Section("pretraining", "Pre-training", "The same stages of a policy that skipped it.", plots.pretraining_plots(data)),
        Section("loss", "Loss", "Each stage over its own steps.", plots.loss_plots(data)),
        Section("speed", "Speed", "Where the time of RL's steps went, and what the learner's hardware gave.", plots.speed_plots(data)),
        Section(
            "health",
            "Health",
            "Metrics to look at before believing the curves. A dashed red line is a limit, a cross the step that came to break it.",
            plots.health_plots(data, metrics),
            tables.metrics_table(metrics),
        ),
        Section(
            "questions",
            "Questions",
            "A question of each kind, its formula layer by layer from the answer at the left; below, the graphs that they are made of.",
            question_plots(data.questions),
            tables.graphs_table(data),
        ),
        Section(
            "synthesis",
            "Synthesis",
            "What the parts of synthesis asked of a teacher, what came of it, and what they made and dropped.",
            Plots(),
            tables.yields_table(data),
        ),
        Section("tools", "Tool use", "What was called, how often, and what came of it.", plots.tool_plots(data), tables.tools_table(data)),
    ]


def _packed_readings(readings: Sequence[Reading]) -> Iterable[tuple[str, str]]:
    """The list of trajectories with their tasks, and their parts in chunks, under the names that the page's scripts know."""
    if not readings:
        return
    tasks = {reading.task: reading for reading in readings}
    numbers = {key: number for number, key in enumerate(tasks)}
    listed = [{**_fields(reading, _LISTED), "task": numbers[reading.task]} for reading in readings]
    asked = [_fields(reading, ("question", "accepted", "environment", "hops")) | {"key": key} for key, reading in tasks.items()]
    yield "readings", pack_json({"tasks": asked, "trajectories": listed, "chunk": CHUNK})
    for number, begin in enumerate(range(0, len(readings), CHUNK)):
        yield f"readings-{number}", pack_json([_fields(reading, _READ) for reading in readings[begin : begin + CHUNK]])


def _fields(reading: Reading, names: Sequence[str]) -> dict[str, Any]:
    found = {name: getattr(reading, name) for name in names}
    return found | {"parts": [asdict(part) for part in reading.parts]} if "parts" in found else found


def _filters(readings: Sequence[Reading]) -> dict[str, list[str]]:
    """Values to filter trajectories by, in order of appearance."""
    return {
        "turn": list(dict.fromkeys(str(reading.wheel_turn) for reading in readings)),
        "stage": list(dict.fromkeys(reading.stage for reading in readings)),
        "policy": list(dict.fromkeys(reading.policy for reading in readings)),
        "outcome": sorted({reading.outcome for reading in readings}, reverse=True),
        "hops": [str(hops) for hops in sorted({reading.hops for reading in readings if reading.hops is not None})],
    }


def pack(text: str) -> str:
    """The text as UTF-8, deflated (zlib, RFC 1950), in base64. Half of a surrogate pair becomes a question mark."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", errors="replace"), 6)).decode("ascii")


def pack_json(value: Any) -> str:
    """A value as JSON, packed."""
    return pack(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
