"""Write the report, one self-contained HTML page.

Documents and actions are untrusted text. The template escapes everything, scripts insert it only as text, and the page's
Content-Security-Policy blocks all loading. JSON and scripts are embedded as deflated base64, which holds no HTML special character.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from flows.report import plots, summary
from flows.report.data import ReportData, monitored_metrics, read_report_data
from flows.report.plots import Panel
from flows.report.questions import question_plots, read_graphs, read_questions
from flows.report.trajectories import Reading, read_trajectories
from flows.report.yields import COMMON, counted_words, read_yields
from flows.results import HARD_SPACE, percent, probability, signed
from warehouse import Lake
from warehouse.drafts import drafted

CHUNK = 40
"""Trajectories per packed chunk; opening one inflates its chunk."""
_LISTED = ("id", "stage", "policy", "wheel_turn", "outcome", "n_turns", "horizon", "reward", "step", "sample", "tokens")


def build_report(lake: Lake, output: Path) -> Path:
    """Write the report on `lake` to `output`, creating its folder. Return the path."""
    data, readings = read_report_data(lake), read_trajectories(lake)
    drawn, tabled = _panels(lake, data), _tables(lake, data)
    figures = {f"{anchor}-{place}": panel.figure for anchor, panels in drawn.items() for place, panel in enumerate(panels)}
    scripts = {"figures": pack_json(figures), "plotly": pack(get_plotlyjs())} if figures else {}
    environment = Environment(
        loader=PackageLoader("flows.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "probability": probability, "signed": signed, "unbroken": _unbroken}
    environment.filters |= {"duration": summary.duration, "in_words": plots.demanded, "counted": counted_words}
    environment.globals["COMMON"] = COMMON
    page = environment.get_template("page.html.jinja").render(
        data=data,
        summary=summary.summarize(data),
        panels=drawn,
        legends={anchor: dict.fromkeys(entry for panel in panels for entry in panel.legend) for anchor, panels in drawn.items()},
        tables=tabled,
        totals=[evaluation for evaluation in data.evaluations if evaluation.hops is None],
        packed={**scripts, **_packed_readings(readings)},
        shown=len(readings),
        filters={
            "iteration": list(dict.fromkeys(str(reading.wheel_turn) for reading in readings)),
            "stage": list(dict.fromkeys(reading.stage for reading in readings)),
            "policy": list(dict.fromkeys(reading.policy for reading in readings)),
            "outcome": sorted({reading.outcome for reading in readings}, reverse=True),
            "hops": [str(hops) for hops in sorted({reading.hops for reading in readings if reading.hops is not None})],
        },
    )
    with drafted(output) as draft:
        draft.write_text(page, encoding="utf-8", errors="replace")
    return output


def _panels(lake: Lake, data: ReportData) -> dict[str, list[Panel]]:
    """Non-empty plots of each section, by anchor."""
    found = {
        "turns": plots.iteration_plots(data),
        "hops": plots.hops_plots(data),
        "learning": plots.reinforcement_plots(data),
        "rewards": plots.reward_plots(data),
        "curriculum": plots.curriculum_plots(data),
        "frontier": plots.frontier_plots(data),
        "pretraining": plots.pretraining_plots(data),
        "loss": plots.loss_plots(data),
        "speed": plots.speed_plots(data),
        "health": plots.health_plots(data),
        "questions": question_plots(read_questions(lake)),
        "tools": plots.tool_plots(data),
    }
    return {anchor: panels for anchor, panels in found.items() if panels}


def _tables(lake: Lake, data: ReportData) -> dict[str, Sequence[Any]]:
    """Non-empty table rows of each section, by anchor."""
    found: dict[str, Sequence[Any]] = {
        "turns": summary.side_by_side(data),
        "curriculum": summary.curricula(data),
        "health": monitored_metrics(data),
        "questions": read_graphs(lake),
        "synthesis": read_yields(lake),
        "tools": data.tools,
    }
    return {anchor: rows for anchor, rows in found.items() if rows}


def _unbroken(text: str) -> str:
    return text.replace(" ", HARD_SPACE)


def _packed_readings(readings: Sequence[Reading]) -> dict[str, str]:
    """Pack the list of trajectories with their tasks, and their parts in chunks, under the names used by the page's scripts."""
    if not readings:
        return {}
    tasks = {reading.task: reading for reading in readings}
    numbers = {key: number for number, key in enumerate(tasks)}
    listed = [{name: getattr(reading, name) for name in _LISTED} | {"task": numbers[reading.task]} for reading in readings]
    asked = [{name: getattr(one, name) for name in ("question", "accepted", "hops")} for one in tasks.values()]
    opened = [{"stop_reason": one.stop_reason, "error": one.error, "parts": [asdict(part) for part in one.parts]} for one in readings]
    chunks = {f"readings-{begin // CHUNK}": pack_json(opened[begin : begin + CHUNK]) for begin in range(0, len(opened), CHUNK)}
    return {"readings": pack_json({"tasks": asked, "trajectories": listed, "chunk": CHUNK}), **chunks}


def pack(text: str) -> str:
    """Encode as UTF-8, deflate (zlib, RFC 1950) and base64. Unpaired surrogates become question marks."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", errors="replace"), 6)).decode("ascii")


def pack_json(value: Any) -> str:
    return pack(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
