"""Settings of dialects."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import Field

from warehouse.settings import Section


class DialectConfig(Section):
    """How prompts, actions and observations appear in tokens."""

    kind: str = "chat"
    """`tags`, `chat`, or `module:attribute`, a factory called with tokenizer and `options`."""
    template: str = "own"
    """`chat`: the tokenizer's `own` template, TRL's `training` variant of it, `chatml_tools`, or a file."""
    system: str | None = None
    """`chat`: system message; None: the template's default."""
    introduce: bool | None = None
    """`tags`: explain tags and tools in the prompt; None: unless the policy is from scratch."""
    variables: dict[str, Any] = Field(default_factory=dict)
    """`chat`: template variables, such as `enable_thinking = false`."""
    today: date = date(2025, 1, 1)
    """`chat`: the fixed date for templates that use one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a custom dialect."""
