"""The configuration of work on open corpora; it stands apart from the code, which imports the agent loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from rl.engines.config import Temperature
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
    """Characters of a passage at most, in whole sentences where they are not longer."""
    max_tokens: PositiveInt = 2_048
    """Tokens of the facts of one passage."""
    relations: tuple[str, ...] = ()
    """The relations that are wanted, in their names as facts bear them; none given means any."""
    verify: bool = True
    """Ask again, for each fact by itself, whether the passage states it."""


class SeedsConfig(Section):
    """Questions that a teacher makes of documents alone, one for each walk over linked passages."""

    count: PositiveInt = 100
    """Walks, each of which is asked for one question; what its checks leave is fewer."""
    passages: int = Field(default=3, ge=1, le=8)
    """Passages of a walk at most, all of different documents; 1 asks about single passages, and needs no links."""
    passage_characters: PositiveInt = 1_200
    """Characters of a passage at most, in whole sentences where they are not longer."""
    sharing: int = Field(default=5, ge=2)
    """Passages that may hold a name for it to link them; one that more of them hold links none."""
    searched: int = Field(default=3, ge=1, le=20)
    """Passages that each search for contradictions and for second answers brings."""
    max_tokens: PositiveInt = 1_024
    """Tokens of a proposal, and of the list of all answers that passages give."""
    temperature: Temperature = 0.7
    """Of proposals; what checks them is asked at 0."""
