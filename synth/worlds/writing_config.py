"""Settings of tool worlds written by a teacher, separate from the implementation to load fast."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveInt, model_validator

from warehouse.errors import RequestError
from warehouse.settings import Section

STAGE = "tool_worlds"
"""Stage of failures in writing tool worlds."""
PARTS = ("tables", "records", "plan", "tools", "tasks")
"""Parts of a world that a teacher writes."""
REQUESTS = ("asked", "first_try", "repaired", "tokens")
COUNTS = ("proposed", "kept", *REQUESTS)
"""Counts per part, stored as `PART_COUNT`: items, requests, first or repaired replies that were accepted, and tokens."""
LONGEST_DESCRIPTION = 20_000
"""Maximum characters of a description."""


class WrittenWorldsConfig(Section):
    """Tool worlds written by a teacher: number, size, and use of their tasks."""

    descriptions: tuple[Path, ...] = Field(min_length=1)
    """Text or Markdown files, each describing a domain: what exists in it, and what people want."""
    worlds: int = Field(default=1, ge=1, le=1_000)
    """Worlds per description."""
    tools: int = Field(default=8, ge=2, le=16)
    """Tools requested per world; those that no task uses are dropped."""
    records: int = Field(default=8, ge=1, le=40)
    """Rows per table."""
    tasks: int = Field(default=20, ge=1, le=500)
    """Maximum tasks per world; each question is written in its own request."""
    demonstrated: float = Field(default=0.0, ge=0, le=1)
    """Share of tasks whose solutions become SFT examples; RL does not use these tasks."""
    conversations: float = Field(default=0.0, ge=0, le=1)
    """Share of the other state-changing tasks that become the hidden goal of a simulated user."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of all tasks reserved for `suite`."""
    suite: str = "held_out"
    """Suite that receives the held-out tasks."""
    max_tokens: PositiveInt = 1_000
    """Maximum tokens per reply."""
    temperature: float = Field(default=0.7, ge=0, le=2)
    """Sampling temperature of rows and questions; tables and tools use at most 0.2."""

    @model_validator(mode="after")
    def _check(self) -> WrittenWorldsConfig:
        if len(set(self.descriptions)) < len(self.descriptions):
            raise ValueError("descriptions lists a file twice: use worlds to get several worlds of one file")
        return self


def read_description(path: Path) -> str:
    """Read a description. Raises RequestError if the file cannot be read or does not have 1 to 20,000 characters."""
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the description {path} cannot be read: {error}; choose a file of text or Markdown.") from error
    if not text or len(text) > LONGEST_DESCRIPTION:
        raise RequestError(f"the description {path} has {len(text):,} characters, but must have 1 to {LONGEST_DESCRIPTION:,}: rewrite it.")
    return text
