"""What Prefect shows of a stage: the figure that matters in one line, the link to the report, and the table of all figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_table_artifact

from flows.home import Home

Rows = list[dict[str, Any]]

MATTERS = {"init": "policy", "cpt": "loss", "sft": "loss", "rl": "reward"}
"""The figure that matters of a training stage."""


def show_in_prefect(home: Path, run_id: str, stage: str, figures: dict[str, Any]) -> None:
    """Make the artifacts of a stage's run: its table under the headline, and the link to the home's report."""
    key = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")
    report = Home(home.resolve()).report.as_uri()
    description = f"**{headline(stage, figures)}**\n\n{run_id} in `{home}`; [report]({report})"
    create_table_artifact(figure_rows(figures), key=key, description=description)
    create_link_artifact(report, link_text="report", key=f"{key}-report", description=f"The page of `{home}`, written when a turn ends.")


def figure_rows(figures: dict[str, Any]) -> Rows:
    """Figures as the rows of a table."""
    return [{"figure": name, **value} if isinstance(value, dict) else {"figure": name, "value": value} for name, value in figures.items()]


def headline(stage: str, figures: dict[str, Any]) -> str:
    """The figure that matters, in a few words; why the stage stopped before its end where it did."""
    if "stopped" in figures:
        return str(figures["stopped"])
    if stage == "gate":
        return str(figures.get("reason", "nothing was decided"))
    if "attempts" in figures:
        return f"{figures['made']} of {figures['attempts']} attempts at {figures['tasks']} tasks were made now"
    if stage == "eval":
        return "; ".join(_success(name, row) for name, row in figures.items() if name.endswith(".all")) or "nothing was evaluated"
    if stage == "rollout":
        return f"{figures.get('success')} of {figures.get('trajectories')} trajectories succeed"
    if stage == "synth":
        tasks = figures.get("tasks.train", 0)
        return f"{tasks} tasks to train on, {sum(v for k, v in figures.items() if k.startswith('examples.'))} examples"
    name = MATTERS.get(stage, "seconds")
    value = figures.get(name)
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _success(name: str, row: dict[str, Any]) -> str:
    suite = name.removesuffix(".all")
    if row["success"] is None:
        return f"{suite}: no verdict"
    return f"{suite}: {100 * row['success']:.1f} % ({100 * row['low']:.1f}–{100 * row['high']:.1f}) of {row['tasks']}"
