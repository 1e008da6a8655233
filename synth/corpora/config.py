"""The configuration of work on open corpora; it stands apart from the code, which imports the agent loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from rl.rollouts.config import Limits
from warehouse.settings import Section


class ExpanderConfig(Section):
    """How far questions are expanded, and what one expansion may take."""

    count: PositiveInt = 100
    """Questions that are expanded, the first ones by key."""
    layers: PositiveInt = 1
    """Layers that each question grows by."""
    structure: Literal["layerwise", "sequential"] = "layerwise"
    """What a layer is: all constants of a question, which give way together or not at all; or, for comparison, one after the other, the
    first that the question names, which leaves the others as shortcuts."""
    attempts: PositiveInt = 2
    """Expansions of one constant that are tried, each under a seed of its own, before its layer is given up."""
    horizon: PositiveInt = 12
    """Turns of one expansion."""
    concurrency: PositiveInt = 8
    """Expansions side by side."""
    documents: PositiveInt = 3
    """Documents that a search brings."""
    max_action_tokens: PositiveInt = 1024
    """Tokens of one thought and call, as the teacher counts them."""
    max_action_characters: PositiveInt = 8_000
    max_observation_characters: PositiveInt = 6_000
    max_context_characters: PositiveInt = 60_000
    temperature: float = Field(default=0.6, ge=0)

    @property
    def limits(self) -> Limits:
        """The limits of the loop, in which a token is a character."""
        return Limits(
            max_action_tokens=self.max_action_characters,
            max_observation_tokens=self.max_observation_characters,
            max_context_tokens=self.max_context_characters,
            temperature=self.temperature,
        )


class ExtractionConfig(Section):
    """How facts are read out of text."""

    passage_characters: PositiveInt = 2_000
    """Characters of a passage at most, in whole sentences; a longer sentence is a passage of its own."""
    max_tokens: PositiveInt = 2_048
    """Tokens of the facts of one passage."""
    relations: tuple[str, ...] = ()
    """The relations that are wanted, in their names as facts bear them; none given means any."""
    verify: bool = True
    """Ask again, for each fact by itself, whether the passage states it."""
