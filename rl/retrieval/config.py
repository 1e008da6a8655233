"""The configuration of how documents are found."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rl.hardware import DEVICE_NAME
from warehouse.settings import Section


class ImperfectSearchConfig(Section):
    """A search that is as imperfect as the world's, over any corpus (`rl/retrieval/imperfect.py`).

    What becomes of a search follows from `seed` and the words of the query: the same query has the same answer at all times and in all
    samples of a task, and a query in other words is another draw. `QUERY page 2` asks for what comes next.
    """

    seed: NonNegativeInt = 0
    displaced: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the queries whose best document comes second or third."""
    namesakes: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the documents whose title another one bears too, about something else; it stands before a displaced document."""
    stubs: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the documents that also are there without half of what they state; such a stub stands before a displaced document."""
    empty: float = Field(default=0.0, ge=0.0, le=0.5)
    """Share of the queries that find nothing."""
    foreign: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the documents that are found among what pages bring beside their text: menus, notices, advertisements, codes."""


class SearchConfig(Section):
    """How documents are found."""

    by: Literal["words", "vectors"] = "words"
    """`words` is BM25; `vectors` compares embeddings of query and documents, which needs `encoder`."""
    encoder: str | None = None
    """Folder of the model that makes embeddings."""
    library: Literal["sentence_transformers", "transformers"] = "sentence_transformers"
    """What runs the encoder. `transformers` takes the mean of the last layer's states over the text, as E5 models want it."""
    query_prefix: str = ""
    """Put before each query; `query: ` for E5."""
    document_prefix: str = ""
    """Put before each document; `passage: ` for E5."""
    device: str = Field(default="cpu", pattern=DEVICE_NAME)
    """Where the encoder computes. With `cuda`, documents are encoded on this process's GPU and queries on that which the environment's
    workers have reserved, such as `rollout.environments.kinds.search.gpus`."""
    batch: PositiveInt = 64
    """Texts that go through the encoder at once."""
    max_tokens: PositiveInt = 256
    """Longer texts are cut off at the right."""
    imperfect: ImperfectSearchConfig | None = None
    """What rollouts find is not at once what they look for; None: every search brings the best documents."""

    @model_validator(mode="after")
    def _check_encoder(self) -> SearchConfig:
        if self.by == "vectors" and self.encoder is None:
            raise ValueError("rollout.search.by = vectors needs rollout.search.encoder, the folder of a model that makes embeddings")
        return self
