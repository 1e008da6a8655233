"""The index that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rl.config import SearchConfig
from rl.retrieval.search import Index, SearchIndex
from rl.retrieval.vectors import Encoder, SentenceTransformersEncoder, TransformersEncoder, VectorIndex
from warehouse.errors import RequestError
from warehouse.records import Document


def build_index(documents: Iterable[Document], config: SearchConfig) -> Index:
    """An index over `documents`, by words or by vectors.

    Raises:
        RequestError: where there is no such encoder, or the library that runs it is not installed.
    """
    if config.by == "words":
        return SearchIndex(documents)
    return VectorIndex(documents, _make_encoder(config), config.query_prefix, config.document_prefix)


def _make_encoder(config: SearchConfig) -> Encoder:
    """The encoder that a configuration names.

    Raises:
        RequestError: where its folder holds no model.
    """
    folder = Path(config.encoder or "")
    if not (folder / "config.json").is_file():
        raise RequestError(f"rollout.search.encoder = {str(folder)!r} holds no model: there is no config.json in it.")
    kind = TransformersEncoder if config.library == "transformers" else SentenceTransformersEncoder
    return kind(str(folder.resolve()), config.batch, config.max_tokens)
