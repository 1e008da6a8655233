"""How a home is run, apart from what it computes: budgets of a turn, attempts at a stage, and who is notified of events.

These sections may change while a home is at work, and so may how its teacher and its judge are asked, for they are no part of the
configuration that a home belongs to: the same command with another budget goes on in the same home.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from synth.teachers.config import HOW_ASKED
from warehouse.settings import Section

_TEACHERS = ("synth.teacher", "evaluation.judge")
OPERATIONAL = frozenset(["budget", "attempts", "events", *(f"{teacher}.{key}" for teacher in _TEACHERS for key in HOW_ASKED)])
"""The keys of the configuration, and those below them, that a home's own may differ in."""


def is_operational(key: str) -> bool:
    """Whether a dotted key says only how a home is run, in all turns or in the later ones."""
    parts = key.removeprefix("later.").split(".")
    return any(".".join(parts[:depth]) in OPERATIONAL for depth in range(1, len(parts) + 1))


class BudgetConfig(Section):
    """What a turn of the wheel may spend; None is without limit. See docs/operations.md for what counts."""

    hours: PositiveFloat | None = None
    """Time in which its stages are at work."""
    tokens: PositiveInt | None = None
    """Tokens that the policy writes and that the teacher reads and writes."""
    disk_gib: PositiveFloat | None = None
    """By how much the home may grow."""

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return any(limit is not None for limit in (self.hours, self.tokens, self.disk_gib))


class AttemptConfig(Section):
    """How often a stage is tried when a fault of the machine ends it, and how long it may hang. A wrong request is tried once."""

    retries: NonNegativeInt = 3
    """Further tries after a fault; each goes on from what the one before it had stored."""
    first_pause_seconds: NonNegativeFloat = 10.0
    """Pause before the second try; it doubles from try to try."""
    timeout_hours: PositiveFloat | None = None
    """A stage that takes longer has hung: it is ended and counts as a fault; None waits for ever."""


class EventKind(StrEnum):
    """Events that people are notified of."""

    promotion = "promotion"
    stopped_run = "stopped_run"
    failed_schedule = "failed_schedule"


class EventsConfig(Section):
    """Who is notified when a policy is promoted, a run stops before its end, or a scheduled run fails: a command, a webhook, or both."""

    command: tuple[str, ...] | None = None
    """Program and arguments, run without a shell; the event is one JSON object on its standard input."""
    webhook: str | None = Field(default=None, pattern="^https?://")
    """Address that the event is posted to, as JSON."""
    token_variable: str | None = None
    """The environment variable whose value the webhook is sent as a bearer token: it stands in no configuration and in no lake."""
    timeout_seconds: PositiveFloat = 10.0
    """A command or a webhook that takes longer is given up."""
    on: tuple[EventKind, ...] = tuple(EventKind)
    """The kinds of events that they are notified of."""

    @model_validator(mode="after")
    def _check(self) -> EventsConfig:
        if self.command is not None and not self.command:
            raise ValueError("command names no program")
        return self
