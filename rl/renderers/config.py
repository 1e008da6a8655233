"""The configuration of dialects."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import Field

from warehouse.settings import Section


class DialectConfig(Section):
    """How prompts, actions and observations stand in tokens."""

    kind: str = "chat"
    """`tags`, `chat`, or `module:attribute`: a factory that takes the policy's tokenizer and `options`."""
    template: str = "own"
    """Of `chat`: the tokenizer's `own` chat template, the one that TRL ships for `training` beside it, `chatml_tools`, or a file."""
    system: str | None = None
    """Of `chat`: the system's message; None is whatever the template does without one."""
    introduce: bool | None = None
    """Of `tags`: whether the prompt says what the tags are and which tools there are; None: unless the policy is from scratch."""
    variables: dict[str, Any] = Field(default_factory=dict)
    """Of `chat`: what the template is given, such as `enable_thinking = false`."""
    today: date = date(2025, 1, 1)
    """Of `chat`: the date that templates are told which ask for it, so that a prompt is the same on every day."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of a dialect of one's own: whatever it takes."""
