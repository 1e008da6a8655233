"""Settings of questions and facts from open corpora; separate from the code, which imports the agent loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from rl.engines.config import Temperature
from rl.rollouts.config import Limits
from warehouse.settings import Section

PASSAGE_CHARACTERS = 1_200
"""Maximum characters of a seed question's passage; passages end at sentences."""
SEARCH_DOCUMENTS = 3
"""Documents per search of the expander."""


class ExpanderConfig(Section):
    """Expansion of questions by a searching teacher."""

    count: PositiveInt = 100
    """Questions to expand, the first by key."""
    layers: PositiveInt = 1
    """Layers added to each question."""
    structure: Literal["layerwise", "sequential"] = "layerwise"
    """A layer replaces all constants of a question together, or one after the other, which leaves shortcuts."""
    attempts: PositiveInt = 2
    """Attempts per constant before its layer is given up."""
    horizon: PositiveInt = 12
    """Maximum turns per run."""
    max_action_tokens: PositiveInt = 1024
    """Maximum tokens of one thought and call, as the teacher counts them."""
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature."""

    @property
    def limits(self) -> Limits:
        """The limits of the agent loop, which counts characters as tokens here."""
        return Limits(max_action_tokens=8_000, max_observation_tokens=8_000, max_context_tokens=60_000, temperature=self.temperature)


class ExtractionConfig(Section):
    """Extraction of facts from text (`flywheel extract`)."""

    passage_characters: PositiveInt = 2_000
    """Maximum characters per passage; passages end at sentences."""
    max_tokens: PositiveInt = 2_048
    """Maximum tokens for the facts of one passage."""
    relations: tuple[str, ...] = ()
    """Relations to extract; empty: any."""
    verify: bool = True
    """Ask again for each fact whether the passage states it."""


class SeedsConfig(Section):
    """Questions that a teacher writes from documents alone, one per walk over linked passages."""

    count: PositiveInt = 100
    """Walks; each is asked for one question, and checks drop some."""
    passages: int = Field(default=3, ge=1, le=8)
    """Maximum passages per walk, all of different documents; 1 needs no links."""
    sharing: int = Field(default=5, ge=2)
    """Maximum passages that may share a name for the name to link them."""
    searched: int = Field(default=3, ge=1, le=20)
    """Passages retrieved by each search for contradictions and second answers."""
    max_tokens: PositiveInt = 1_024
    """Maximum tokens of a proposal, and of the list of answers that passages give."""
    temperature: Temperature = 0.7
    """Sampling temperature of proposals; checks use 0."""
