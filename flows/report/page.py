"""Writes the report: one self-contained HTML page.

Documents and actions are hostile text. The template escapes everything, scripts insert it as text only, and the page's
Content-Security-Policy forbids loading anything. JSON and scripts are deflated base64, which holds no character that HTML interprets.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from flows.report import plots, tables
from flows.report.data import read_report_data
from flows.report.plots import Panel, Plots
from flows.report.questions import question_plots, read_graphs, read_questions
from flows.report.summary import monitored_metrics, summarize
from flows.report.trajectories import Reading, read_trajectories
from flows.report.yields import read_yields
from flows.results import HARD_SPACE, percent, probability, signed
from warehouse import Lake
from warehouse.drafts import drafted

CHUNK = 40
"""Trajectories packed together: opening one inflates as many."""
_LISTED = ("id", "stage", "policy", "wheel_turn", "outcome", "n_turns", "horizon", "reward", "step", "sample", "tokens")


class Section(NamedTuple):
    """A section of plots and perhaps a table, with its anchor in the page."""

    anchor: str
    title: str
    lead: str
    plots: Plots = Plots()
    table: tables.Table | None = None

    @property
    def panels(self) -> list[tuple[str, Panel]]:
        """The panels, each with its id in the page."""
        return [(f"{self.anchor}-{place}", panel) for place, panel in enumerate(self.plots.panels)]


def build_report(lake: Lake, output: Path) -> Path:
    """Write the report on `lake` to the file `output`, creating its folder; returns the path."""
    data, readings = read_report_data(lake), read_trajectories(lake)
    metrics = monitored_metrics(data)
    sections = [
        Section("turns", "Turns", "What each turn made, sampled and cost.", plots.iteration_plots(data), tables.iterations_table(data)),
        Section("hops", "Success by hops", "Held-out tasks by hops, with 95 % intervals.", plots.hops_plots(data)),
        Section("learning", "Reinforcement learning", "Each step, faint, under its running mean.", plots.reinforcement_plots(data)),
        Section("rewards", "Reward parts", "The parts of the reward, step by step.", plots.reward_plots(data)),
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
            "RL's tasks with at least two attempts, by how many of these solved them. Only tasks solved sometimes have a gradient.",
            plots.frontier_plots(data),
        ),
        Section("pretraining", "Pre-training", "The same stages of a policy that skipped it.", plots.pretraining_plots(data)),
        Section("loss", "Loss", "Each stage over its own steps.", plots.loss_plots(data)),
        Section("speed", "Speed", "Time of RL's steps, and throughput of the learner.", plots.speed_plots(data)),
        Section(
            "health",
            "Health",
            "Metrics to check before trusting the curves. A dashed red line is a limit, a cross the step that broke it.",
            plots.health_plots(data, metrics),
            tables.metrics_table(metrics),
        ),
        Section(
            "questions",
            "Questions",
            "A question of each kind, its formula layer by layer from the answer at the left; below, the knowledge graphs.",
            question_plots(read_questions(lake)),
            tables.graphs_table(read_graphs(lake)),
        ),
        Section(
            "synthesis",
            "Synthesis",
            "Each part's requests to a teacher, what it made, and what it dropped.",
            table=tables.yields_table(read_yields(lake)),
        ),
        Section("tools", "Tool use", "Calls of tools, and their results.", plots.tool_plots(data), tables.tools_table(data)),
    ]
    figures = {name: panel.figure for section in sections for name, panel in section.panels}
    environment = Environment(
        loader=PackageLoader("flows.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "probability": probability, "signed": signed, "unbroken": _unbroken}
    page = environment.get_template("page.html.jinja").render(
        data=data,
        summary=summarize(data),
        sections=[section for section in sections if section.panels or section.table],
        line=tables.line_table(data),
        packed={
            **({"figures": pack_json(figures), "plotly": pack(get_plotlyjs())} if figures else {}),
            **dict(_packed_readings(readings)),
        },
        shown=len(readings),
        filters={
            "turn": list(dict.fromkeys(str(reading.wheel_turn) for reading in readings)),
            "stage": list(dict.fromkeys(reading.stage for reading in readings)),
            "policy": list(dict.fromkeys(reading.policy for reading in readings)),
            "outcome": sorted({reading.outcome for reading in readings}, reverse=True),
            "hops": [str(hops) for hops in sorted({reading.hops for reading in readings if reading.hops is not None})],
        },
    )
    with drafted(output) as draft:
        draft.write_text(page, encoding="utf-8", errors="replace")
    return output


def _unbroken(text: str) -> str:
    return text.replace(" ", HARD_SPACE)


def _packed_readings(readings: Sequence[Reading]) -> Iterator[tuple[str, str]]:
    """The list of trajectories with their tasks, and their parts in chunks, under the names that the page's scripts use."""
    if not readings:
        return
    tasks = {reading.task: reading for reading in readings}
    numbers = {key: number for number, key in enumerate(tasks)}
    listed = [{name: getattr(reading, name) for name in _LISTED} | {"task": numbers[reading.task]} for reading in readings]
    asked = [
        {"key": key, "question": one.question, "accepted": one.accepted, "environment": one.environment, "hops": one.hops}
        for key, one in tasks.items()
    ]
    yield "readings", pack_json({"tasks": asked, "trajectories": listed, "chunk": CHUNK})
    for number, begin in enumerate(range(0, len(readings), CHUNK)):
        chunk = [
            {"stop_reason": one.stop_reason, "error": one.error, "parts": [asdict(part) for part in one.parts]}
            for one in readings[begin : begin + CHUNK]
        ]
        yield f"readings-{number}", pack_json(chunk)


def pack(text: str) -> str:
    """UTF-8, deflated (zlib, RFC 1950), in base64. Half of a surrogate pair becomes a question mark."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", errors="replace"), 6)).decode("ascii")


def pack_json(value: Any) -> str:
    """A value as JSON, packed."""
    return pack(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
