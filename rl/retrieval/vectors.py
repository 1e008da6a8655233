"""Vector search: find the documents with the nearest embeddings.

The search is exact: one product of the query with the matrix of unit rows, so scores are cosines. A million documents of width 768 take 3
GB and tenths of a second per query on two cores; for more, use a server with Search-R1's interface and an approximate index. Ties are
ordered by id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl.hardware import open_device
from rl.retrieval.config import SearchConfig
from rl.retrieval.search import Hits, Miss, by_id, passage
from warehouse.errors import RequestError
from warehouse.records import Document

Vectors = NDArray[np.float32]
ENCODER_BATCH = 64


class Encoder(Protocol):
    """An embedding model; picklable, because it is sent to workers with the index."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Embeddings of texts, shape (texts, width)."""
        ...


class VectorIndex:
    """Document index by cosine similarity of embeddings."""

    paged = False

    def __init__(self, documents: Iterable[Document], encoder: Encoder, query_prefix: str = "", document_prefix: str = "") -> None:
        """Encode title and text of `documents`."""
        self.documents: tuple[Document, ...] = by_id(documents)
        self._encoder = encoder
        self._query_prefix = query_prefix
        self._vectors = _unit(encoder.encode([document_prefix + passage(document) for document in self.documents]))

    def __len__(self) -> int:
        return len(self.documents)

    def among(self, documents: Iterable[Document]) -> VectorIndex:
        """Index over a subset, without encoding again."""
        wanted = {document.id for document in documents}
        places = [place for place, document in enumerate(self.documents) if document.id in wanted]
        part = copy(self)
        part.documents, part._vectors = tuple(self.documents[place] for place in places), self._vectors[places]
        return part

    def find(self, query: str, k: int = 1) -> Hits:
        """The best `k` documents; none only for an empty query or an empty index."""
        if not query.strip():
            return Hits((), Miss.EMPTY_QUERY)
        found = tuple(document for document, _ in self.scored(query, k))
        return Hits(found, None if found else Miss.NO_HIT)

    def scored(self, query: str, k: int = 1) -> list[tuple[Document, float]]:
        """The best `k` documents with their cosines in [-1, 1]."""
        if not query.strip() or not self.documents:
            return []
        scores = self._vectors @ _unit(self._encoder.encode([self._query_prefix + query]))[0]
        best = np.argsort(-scores, kind="stable")[:k]
        return [(self.documents[position], float(scores[position])) for position in best]


class LocalEncoder(ABC):
    """Encoder from a model folder, loaded on first use in each process."""

    def __init__(self, folder: str, batch: int = 64, max_tokens: int = 256, device: str = "cpu") -> None:
        self._folder, self._batch, self._max_tokens, self._device_name = folder, batch, max_tokens, device

    @property
    def _device(self) -> Any:
        """The torch device. Raises RequestError if this process does not see it."""
        return open_device(self._device_name, "rollout.search.device")

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Vectors:
        """Embeddings, float32, shape (texts, width)."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything but the model."""
        return {name: value for name, value in self.__dict__.items() if name != "_model"}


class TransformersEncoder(LocalEncoder):
    """Mean of the last layer's states over the tokens of a text (E5: Wang et al. 2022, arXiv 2212.03533, section 3.1)."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        import torch

        tokenizer, model = self._model
        rows = []
        for start in range(0, len(texts), self._batch):
            part = list(texts[start : start + self._batch])
            inputs = tokenizer(part, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt")
            inputs = inputs.to(model.device)
            with torch.inference_mode():
                states = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1)
            rows.append(((states * mask).sum(1) / mask.sum(1)).float().cpu().numpy())
        return np.concatenate(rows) if rows else np.zeros((0, model.config.hidden_size), np.float32)

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        model: Any = AutoModel.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False).eval()
        return tokenizer, model.to(self._device)


class SentenceTransformersEncoder(LocalEncoder):
    """A sentence-transformers model, whose folder defines how embeddings are computed."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        return np.asarray(self._model.encode(list(texts), batch_size=self._batch, show_progress_bar=False), np.float32)

    @cached_property
    def _model(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise RequestError(
                "rollout.search.library = sentence_transformers needs that package, which is not installed: "
                "pip install sentence-transformers, or set rollout.search.library = transformers."
            ) from error
        model = SentenceTransformer(self._folder, device=str(self._device), local_files_only=True, trust_remote_code=False)
        model.max_seq_length = self._max_tokens
        return model


def _unit(vectors: Vectors) -> Vectors:
    """Normalize rows to length 1; zero rows stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))


def build_vectors(documents: Iterable[Document], config: SearchConfig) -> VectorIndex:
    """Build the configured vector index over `documents`.

    Raises:
        RequestError: no such encoder, or its library is not installed.
    """
    return VectorIndex(documents, _make_encoder(config), config.query_prefix, config.document_prefix)


def _make_encoder(config: SearchConfig) -> Encoder:
    """Create the configured encoder. Raises RequestError if its folder holds no model."""
    folder = Path(config.encoder or "")
    if not (folder / "config.json").is_file():
        raise RequestError(f"rollout.search.encoder = {str(folder)!r} does not contain a model: there is no config.json in it.")
    kind = TransformersEncoder if config.library == "transformers" else SentenceTransformersEncoder
    return kind(str(folder.resolve()), ENCODER_BATCH, config.max_tokens, config.device)
