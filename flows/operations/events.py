"""Telling people what happened: a command, a webhook, and an event in Prefect that its automations can wait for.

A hook that fails is recorded in `failures` and stops nothing: whoever does not hear of a promotion has a promoted policy all the same.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
from prefect.events import emit_event

from flows.operations.config import EventsConfig, Happening
from warehouse import Failure, Lake

log = logging.getLogger("flywheel")


@dataclass(frozen=True, slots=True)
class Event:
    """What happened in which home and to which run, told in a sentence; `facts` are JSON-able."""

    happening: Happening
    home: Path
    run: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    def document(self) -> dict[str, Any]:
        """The event as the JSON object that hooks receive."""
        told = {"event": self.happening.value, "home": str(self.home.resolve()), "run": self.run, "sentence": self.sentence}
        return {**told, "facts": self.facts, "time": self.time.isoformat()}


def tell(event: Event, config: EventsConfig, lake: Lake | None) -> None:
    """Tell whoever `config` names; what goes wrong becomes a row of `failures`, or a line of the log where there is no lake."""
    document = event.document()
    emit_event(
        f"flywheel.{event.happening.value}",
        resource={"prefect.resource.id": f"flywheel.home.{document['home']}", "prefect.resource.name": event.home.name},
        payload=document,
    )
    if event.happening not in config.on:
        return
    if config.command is not None:
        command = config.command
        _try(lake, document, "command", lambda: run_command(command, document, config.timeout_seconds))
    if config.webhook is not None:
        _try(lake, document, "webhook", lambda: post(config, document))


def run_command(command: tuple[str, ...], document: dict[str, Any], timeout_seconds: float) -> None:
    """Run a command with the event on its standard input. Raises OSError or SubprocessError where that fails or takes too long."""
    subprocess.run(command, input=json.dumps(document, default=str), text=True, capture_output=True, timeout=timeout_seconds, check=True)


def post(config: EventsConfig, document: dict[str, Any]) -> None:
    """Post the event to the webhook. Raises httpx.HTTPError where it is not reached or does not answer with success."""
    token = os.environ.get(config.token_variable) if config.token_variable else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = json.dumps(document, default=str)
    headers["Content-Type"] = "application/json"
    httpx.post(str(config.webhook), content=body, headers=headers, timeout=config.timeout_seconds).raise_for_status()


def _try(lake: Lake | None, document: dict[str, Any], hook: str, work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, subprocess.SubprocessError, httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"the {hook} was not told of {document['event']}: {_words(error)}"
        log.warning(reason)
        _record(lake, Failure("events", f"{hook}_failed", reason, document))


def _words(error: Exception) -> str:
    said = error.stderr.strip()[-300:] if isinstance(error, subprocess.CalledProcessError) and error.stderr else ""
    return f"{type(error).__name__}: {str(error)[:300]}" + (f" ({said})" if said else "")


def _record(lake: Lake | None, failure: Failure) -> None:
    try:
        if lake is not None:
            lake.add([failure])
    except duckdb.Error as error:
        log.warning("nor could that be recorded: %s", error)
