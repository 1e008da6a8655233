"""Search by vectors, with a real encoder of random weights, made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from rl.retrieval.config import SearchConfig
from rl.retrieval.indexes import build_index
from rl.retrieval.vectors import TransformersEncoder, VectorIndex, Vectors
from tests.rl.conftest import DOCUMENTS
from warehouse.errors import RequestError
from warehouse.records import Document

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [f"{document.title} {document.text}" for document in DOCUMENTS]


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers and its tokenizer of words."""
    folder = tmp_path_factory.mktemp("encoder")
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def config(encoder_folder: Path) -> SearchConfig:
    return SearchConfig(by="vectors", encoder=str(encoder_folder), library="transformers")


class Letters:
    """Counts letters: an embedding that can be worked out by hand."""

    def encode(self, texts: list[str]) -> Vectors:
        counts = [[text.lower().count(letter) for letter in LETTERS] for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), len(LETTERS))


def letters(*texts: str) -> VectorIndex:
    return VectorIndex([Document(f"d{number}", text, text, "test") for number, text in enumerate(texts)], Letters())  # type: ignore[arg-type]


def test_the_nearest_by_cosine_comes_first() -> None:
    index = letters("aab", "ab", "b")
    assert [(document.id, round(score, 4)) for document, score in index.scored("a", 3)] == [("d0", 0.8944), ("d1", 0.7071), ("d2", 0.0)]


@pytest.mark.slow
def test_embeddings_do_not_depend_on_what_else_is_in_the_batch(encoder_folder: Path) -> None:
    encoder = TransformersEncoder(str(encoder_folder), batch=4)
    together, alone = encoder.encode(TEXTS), np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert together.shape == (4, 32)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_an_encoder_must_be_named_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rollout\.search\.encoder"):
        SearchConfig(by="vectors")
    with pytest.raises(RequestError, match="holds no model"):
        build_index(DOCUMENTS, SearchConfig(by="vectors", encoder=str(tmp_path)))
