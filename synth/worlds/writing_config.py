"""The configuration of tool worlds that a teacher writes from descriptions; it stands apart from their code, which runs programs."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveInt, model_validator

from rl.envs.tool_world.limits import CodeLimits
from warehouse.errors import RequestError
from warehouse.settings import Section

LONGEST_DESCRIPTION = 20_000
"""Characters of a description."""


class WrittenWorldsConfig(Section):
    """Which worlds a teacher writes, how large they are, and what becomes of their tasks."""

    descriptions: tuple[Path, ...] = Field(min_length=1)
    """Files of text or Markdown, each of which describes a domain: what there is, and what people want of it."""
    worlds: int = Field(default=1, ge=1, le=1_000)
    """Worlds of each description, each written anew."""
    tools: int = Field(default=8, ge=2, le=16)
    """Tools that are asked for; what no task uses is dropped."""
    records: int = Field(default=8, ge=1, le=40)
    """Records of each table that are asked for."""
    tasks: int = Field(default=20, ge=1, le=500)
    """Tasks that are asked for of each world, in requests of `tasks_per_request`."""
    tasks_per_request: int = Field(default=5, ge=1, le=20)
    most_calls: int = Field(default=8, ge=1, le=12)
    """Calls of a task's solution."""
    code: bool = True
    """Whether a tool may be written as Python, where steps do not say what it does; it runs in the sandbox alone."""
    limits: CodeLimits = CodeLimits()
    """What such code may use while tasks are proven; rollouts have theirs among the options of the environment."""
    demonstrated: float = Field(default=0.0, ge=0, le=1)
    """Share of the tasks whose solutions SFT learns from; RL does not draw these."""
    conversations: float = Field(default=0.0, ge=0, le=1)
    """Share of the other tasks, as far as they change anything, that a simulated user has as a hidden goal."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of all tasks that is for the suite `suite`, and for no training."""
    suite: str = "held_out"
    max_tokens: PositiveInt = 4_000
    """Of a reply."""
    temperature: float = Field(default=0.7, ge=0, le=2)

    @model_validator(mode="after")
    def _check(self) -> WrittenWorldsConfig:
        if len(set(self.descriptions)) < len(self.descriptions):
            raise ValueError("descriptions names a file twice: ask for several worlds of it by worlds")
        return self


def read_description(path: Path) -> str:
    """What a description says. Raises RequestError where there is no such file, or it is no text of at most 20,000 characters."""
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the description {path} cannot be read: {error}; name a file of text or Markdown.") from error
    if not text or len(text) > LONGEST_DESCRIPTION:
        raise RequestError(f"the description {path} has {len(text):,} characters, and may have 1 to {LONGEST_DESCRIPTION:,}: rewrite it.")
    return text
