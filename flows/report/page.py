"""Writes the report: one HTML page with everything inside it, readable without a network.

Documents and actions are hostile text. The template escapes all of it, figures travel as JSON that cannot close its script
element, and the page's own policy (Content-Security-Policy) forbids it to load anything at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from flows.report.data import COMPARED, Evaluation, ReportData, read_report_data
from flows.report.figures import Panel, Plots, curriculum_plots, health_plots, hops_plots, loss_plots, reinforcement_plots, variant_name
from flows.report.summary import percent, signed, summarize, unbroken
from flows.report.trajectories import Reading, read_trajectories
from flows.verdicts import probability
from warehouse import Lake


def build_report(lake: Lake, output: Path) -> Path:
    """Writes the report on `lake` to the file `output` (its folder is made) and gives the path back."""
    page = render(read_report_data(lake), read_trajectories(lake))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8", errors="replace")
    return output


@dataclass(frozen=True, slots=True)
class Section:
    """A section of plots, with the anchor by which the page links to it."""

    anchor: str
    title: str
    lead: str
    plots: Plots

    @property
    def panels(self) -> list[tuple[str, Panel]]:
        """The panels, each with the id of its place in the page."""
        return [(f"{self.anchor}-{place}", panel) for place, panel in enumerate(self.plots.panels)]


def render(data: ReportData, readings: tuple[Reading, ...]) -> str:
    """The page as text."""
    sections = [section for section in _sections(data) if section.panels]
    environment = Environment(
        loader=PackageLoader("flows.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "probability": probability, "signed": signed, "unbroken": unbroken}
    return environment.get_template("page.html.jinja").render(
        data=data,
        summary=summarize(data),
        sections=sections,
        figures={name: panel.figure for section in sections for name, panel in section.panels},
        compared=_compared(data),
        readings=readings,
        filters=_filters(readings),
        plotly=get_plotlyjs() if sections else "",
    )


def _sections(data: ReportData) -> list[Section]:
    return [
        Section(
            "hops", "Success by hops", "Held-out tasks by the facts that an answer needs. Whiskers are 95 % intervals.", hops_plots(data)
        ),
        Section("learning", "Reinforcement learning", "Each step as measured, faint, under its running mean.", reinforcement_plots(data)),
        Section("curriculum", "Curriculum", "The growing horizon against fixed ones, from the same start.", curriculum_plots(data)),
        Section("loss", "Loss", "Each stage over its own steps.", loss_plots(data)),
        Section("health", "Health", "Signs to look at before believing the curves.", health_plots(data)),
    ]


def _compared(data: ReportData) -> list[tuple[str, Evaluation]]:
    """(name of the curriculum, evaluation over all hops) of the runs that stand against each other."""
    turns = {run.wheel_turn for run in data.runs if run.stage == "rl" and run.variant in COMPARED}
    names = {run.policy: variant_name(run) for run in data.runs if run.stage == "rl" and run.policy and run.wheel_turn in turns}
    return [(names[e.policy], e) for e in data.evaluations if e.hops is None and e.policy in names]


def _filters(readings: tuple[Reading, ...]) -> dict[str, list[str]]:
    """Values to filter trajectories by, in order of appearance."""
    return {
        "turn": list(dict.fromkeys(str(reading.wheel_turn) for reading in readings)),
        "stage": list(dict.fromkeys(reading.stage for reading in readings)),
        "outcome": sorted({reading.outcome for reading in readings}, reverse=True),
        "hops": sorted({str(reading.hops) for reading in readings if reading.hops is not None}),
    }
