"""Operational settings: budgets, retries and notifications.

They do not affect what is computed and may change between runs of a home, as may the connection settings of its teacher and judges.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from synth.teachers.config import HOW_ASKED
from warehouse.settings import Section

_TEACHERS = ("synth.teacher", "synth.judge", "evaluation.judge")
OPERATIONAL = frozenset(["budget", "attempts", "events", *(f"{teacher}.{key}" for teacher in _TEACHERS for key in HOW_ASKED)])
"""Operational keys; all keys below them are operational too."""


def is_operational(key: str) -> bool:
    """Return whether a dotted key is operational."""
    parts = key.removeprefix("later.").split(".")
    return any(".".join(parts[:depth]) in OPERATIONAL for depth in range(1, len(parts) + 1))


class BudgetConfig(Section):
    """Budget of one iteration; None: no limit (docs/operations.md)."""

    hours: PositiveFloat | None = None
    """Working time of the stages in hours."""
    tokens: PositiveInt | None = None
    """Tokens sampled by the policy, and read or written by the teacher."""
    usd: PositiveFloat | None = None
    """US dollars paid for completions of teachers and judges, by their `usd_per_million`."""
    disk_gib: PositiveFloat | None = None
    """Growth of the home in GiB."""

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return any(limit is not None for limit in (self.hours, self.tokens, self.usd, self.disk_gib))


class AttemptConfig(Section):
    """Retries of a stage after a machine fault."""

    retries: NonNegativeInt = 3
    """Number of retries; each resumes from stored results."""
    first_pause_seconds: NonNegativeFloat = 10.0
    """Pause before the first retry; doubles with each retry."""
    timeout_hours: PositiveFloat | None = None
    """Time after which a stage counts as hung; None: never."""


class EventKind(StrEnum):
    """Events that trigger notifications."""

    promotion = "promotion"
    stopped_run = "stopped_run"
    failed_schedule = "failed_schedule"


class EventsConfig(Section):
    """Notifications by command or webhook."""

    command: tuple[str, ...] | None = None
    """Program and arguments, run without a shell; the event is passed as JSON on standard input."""
    webhook: str | None = Field(default=None, pattern="^https?://")
    """URL to which events are posted as JSON."""
    token_variable: str | None = None
    """Environment variable with the webhook's bearer token; the token itself is never stored."""
    timeout_seconds: PositiveFloat = 10.0
    """Timeout of command and webhook."""
    on: tuple[EventKind, ...] = tuple(EventKind)
    """Events that run the command or webhook; Prefect receives all."""

    @model_validator(mode="after")
    def _check(self) -> EventsConfig:
        if self.command is not None and not self.command:
            raise ValueError("command is empty")
        return self
