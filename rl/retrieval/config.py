"""Configuration of document search."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rl.hardware import DEVICE_NAME
from warehouse.settings import Section


class ImperfectSearchConfig(Section):
    """Deliberately imperfect search (`rl/retrieval/indexes.py`), deterministic in `seed` and the words of the query."""

    seed: NonNegativeInt = 0
    """Seed of the imperfections."""
    displaced: float = Field(default=0.0, ge=0.0, le=1.0)
    """Fraction of queries whose best document ranks second or third."""
    namesakes: float = Field(default=0.0, ge=0.0, le=1.0)
    """Fraction of documents with a namesake: the same title with text about something else, ranked before a displaced document."""
    stubs: float = Field(default=0.0, ge=0.0, le=1.0)
    """Fraction of documents with a stub that lacks half of their facts, ranked before a displaced document."""
    empty: float = Field(default=0.0, ge=0.0, le=0.5)
    """Fraction of queries without results."""
    foreign: float = Field(default=0.0, ge=0.0, le=1.0)
    """Fraction of documents surrounded by menus, notices, advertisements and codes."""


class SearchConfig(Section):
    """Document search."""

    by: Literal["words", "vectors"] = "words"
    """BM25 (`words`) or embeddings (`vectors`, which needs `encoder`)."""
    encoder: str | None = None
    """Folder of the embedding model."""
    library: Literal["sentence_transformers", "transformers"] = "sentence_transformers"
    """Library that runs the encoder; `transformers` uses mean pooling, as for E5."""
    query_prefix: str = ""
    """Prefix of queries, such as `query: ` for E5."""
    document_prefix: str = ""
    """Prefix of documents, such as `passage: ` for E5."""
    device: str = Field(default="cpu", pattern=DEVICE_NAME)
    """Device of the encoder; for `cuda` also reserve GPUs with `rollout.environments.kinds.search.gpus`."""
    max_tokens: PositiveInt = 256
    """Maximum tokens per text; longer ones are truncated on the right."""
    imperfect: ImperfectSearchConfig | None = None
    """Make the search in rollouts imperfect; None leaves it exact."""

    @model_validator(mode="after")
    def _check_encoder(self) -> SearchConfig:
        if self.by == "vectors" and self.encoder is None:
            raise ValueError("rollout.search.by = vectors needs rollout.search.encoder, the folder of an embedding model")
        return self
