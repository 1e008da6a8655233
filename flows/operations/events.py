"""Reporting of runs: Prefect artifacts, Prefect events for automations, and the user's hooks (a command or a webhook).

A failed hook is recorded in `failures`; it never reverts a promotion or stops a run.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.events import emit_event

from flows.home import Home
from flows.operations_config import EventKind, EventsConfig
from flows.runtime import SAFE_PATH
from rl.terminal import in_line
from warehouse import Failure, Lake

log = logging.getLogger("flywheel")

Rows = list[dict[str, Any]]

HEADLINES = {"init": "policy", "cpt": "loss", "sft": "loss", "rl": "reward"}
"""Headline metric of each training stage."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a run of a home, as a sentence and as JSON `facts`."""

    kind: EventKind
    home: Path
    run: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    def document(self) -> dict[str, Any]:
        """The JSON object passed to hooks."""
        document = {"event": self.kind.value, "home": str(self.home.resolve()), "run": self.run, "sentence": self.sentence}
        return {**document, "facts": self.facts, "time": self.time.isoformat()}


def notify(event: Event, config: EventsConfig, lake: Lake | None) -> None:
    """Emit the event in Prefect and run the configured hooks. Hook errors are recorded in `failures`, or logged without a lake."""
    document = event.document()
    emit_event(
        f"flywheel.{event.kind.value}",
        resource={"prefect.resource.id": f"flywheel.home.{document['home']}", "prefect.resource.name": event.home.name},
        payload=document,
    )
    if event.kind not in config.on:
        return
    if config.command is not None:
        command = config.command
        _run_hook(lake, document, "command", lambda: run_command(command, document, config.timeout_seconds))
    if config.webhook is not None:
        _run_hook(lake, document, "webhook", lambda: post(config, document))


def run_command(command: tuple[str, ...], document: dict[str, Any], timeout_seconds: float) -> None:
    """Run a command with the event on standard input. Raises OSError or SubprocessError if it fails or times out."""
    own = {name: value for name, value in os.environ.items() if name != SAFE_PATH}  # a user's script may import modules next to it
    text = json.dumps(document, default=str)
    subprocess.run(command, input=text, text=True, capture_output=True, timeout=timeout_seconds, check=True, env=own)


def post(config: EventsConfig, document: dict[str, Any]) -> None:
    """Post the event to the webhook. Raises httpx.HTTPError unless the response is successful."""
    token = os.environ.get(config.token_variable) if config.token_variable else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = json.dumps(document, default=str)
    headers["Content-Type"] = "application/json"
    httpx.post(str(config.webhook), content=body, headers=headers, timeout=config.timeout_seconds).raise_for_status()


def _run_hook(lake: Lake | None, document: dict[str, Any], hook: str, work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, subprocess.SubprocessError, httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"the {hook} failed for the event {document['event']}: {_reason(error)}"
        log.warning(reason)
        _record(lake, Failure("events", f"{hook}_failed", reason, document))


def _reason(error: Exception) -> str:
    output = error.stderr.strip()[-300:] if isinstance(error, subprocess.CalledProcessError) and error.stderr else ""
    return f"{type(error).__name__}: {str(error)[:300]}" + (f" ({output})" if output else "")


def _record(lake: Lake | None, failure: Failure) -> None:
    try:
        if lake is not None:
            lake.add([failure])
    except duckdb.Error as error:
        log.warning("the failed hook could not be recorded: %s", error)


def show_in_prefect(home: Path, run_id: str, stage: str, metrics: dict[str, Any]) -> None:
    """Create a run's Prefect artifacts: its table of metrics and a link to the report."""
    key = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")
    report = Home(home.resolve()).report.as_uri()
    description = f"**{in_line(headline(stage, metrics))}**\n\n{run_id} in `{home}`; [report]({report})"
    create_table_artifact(figure_rows(metrics), key=key, description=description)
    create_link_artifact(report, link_text="report", key=f"{key}-report", description=f"The page of `{home}`, written when a turn ends.")


def figure_rows(metrics: dict[str, Any]) -> Rows:
    """Convert figures to table rows, with control characters escaped."""
    rows = [{"figure": name, **value} if isinstance(value, dict) else {"figure": name, "value": value} for name, value in metrics.items()]
    return [{in_line(name): in_line(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows]


def headline(stage: str, metrics: dict[str, Any]) -> str:
    """Headline of a stage: its main result, or why it stopped early."""
    if "stopped" in metrics:
        return str(metrics["stopped"])
    if stage == "gate":
        return str(metrics.get("reason", "nothing was decided"))
    if "attempts" in metrics:
        return f"{metrics['made']} of {metrics['attempts']} attempts at {metrics['tasks']} tasks were made now"
    if stage == "eval":
        return "; ".join(_success(name, row) for name, row in metrics.items() if name.endswith(".all")) or "nothing was evaluated"
    if stage == "rollout":
        return f"{metrics.get('success')} of {metrics.get('trajectories')} trajectories succeed"
    if stage == "synth":
        tasks = metrics.get("tasks.train", 0)
        return f"{tasks} tasks to train on, {sum(v for k, v in metrics.items() if k.startswith('examples.'))} examples"
    name = HEADLINES.get(stage, "seconds")
    value = metrics.get(name)
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _success(name: str, row: dict[str, Any]) -> str:
    suite = name.removesuffix(".all")
    if row["success"] is None:
        return f"{suite}: no verdict"
    return f"{suite}: {100 * row['success']:.1f} % ({100 * row['low']:.1f}–{100 * row['high']:.1f}) of {row['tasks']}"
