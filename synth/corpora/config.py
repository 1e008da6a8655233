"""Settings for questions and facts from open corpora, separate from the implementation to keep imports light."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from rl.engines.config import Temperature
from rl.rollouts.config import Limits
from warehouse.settings import Section

PASSAGE_CHARACTERS = 1_200
"""Maximum characters per passage of a seed question; passages end at sentence boundaries."""
SEARCH_DOCUMENTS = 3
"""Documents returned per Expander search."""


class ExpanderConfig(Section):
    """Expansion of questions by a teacher with search."""

    count: PositiveInt = 100
    """Number of questions to expand, in key order."""
    layers: PositiveInt = 1
    """Layers to add to each question."""
    structure: Literal["layerwise", "sequential"] = "layerwise"
    """`layerwise` replaces all constants of a question at once; `sequential` replaces one per layer and can leave shortcuts."""
    attempts: PositiveInt = 2
    """Attempts per constant before the layer is abandoned."""
    horizon: PositiveInt = 12
    """Maximum turns per run."""
    max_action_tokens: PositiveInt = 1024
    """Maximum tokens per action (thought and call), counted by the teacher."""
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature."""

    @property
    def limits(self) -> Limits:
        """Agent-loop limits; the text dialect counts one character as one token."""
        return Limits(max_action_tokens=8_000, max_observation_tokens=8_000, max_context_tokens=60_000, temperature=self.temperature)


class ExtractionConfig(Section):
    """Extraction of facts from text (`flywheel extract`)."""

    passage_characters: PositiveInt = 2_000
    """Maximum characters per passage; passages end at sentence boundaries."""
    max_tokens: PositiveInt = 2_048
    """Maximum reply tokens for the facts of one passage."""
    relations: tuple[str, ...] = ()
    """Relations to extract; empty: all."""
    verify: bool = True
    """Verify each fact with a second request that asks whether the passage states it."""


class SeedsConfig(Section):
    """Questions that a teacher writes from documents, one per walk over linked passages."""

    count: PositiveInt = 100
    """Number of walks. Each yields at most one question; checks reject some."""
    passages: int = Field(default=3, ge=1, le=8)
    """Maximum passages per walk, each from a different document; 1 needs no links."""
    sharing: int = Field(default=5, ge=2)
    """A name links passages only if at most this many passages contain it."""
    searched: int = Field(default=3, ge=1, le=20)
    """Passages retrieved per search for contradictions and alternative answers."""
    comparisons: float = Field(default=0, ge=0, le=0.5)
    """Comparison questions per walk ("Which film was released first, A or B?"), from the dates in the walks' facts."""
    max_tokens: PositiveInt = 1_024
    """Maximum reply tokens for the facts of a passage and for a list of answers."""
    temperature: Temperature = 0.7
    """Sampling temperature for writing questions; checks use 0."""
