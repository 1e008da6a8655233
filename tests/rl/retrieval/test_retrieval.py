"""Search by words and by vectors, and the documents that training and suites may find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from rl.retrieval.config import SearchConfig
from rl.retrieval.indexes import build_index, build_indexes
from rl.retrieval.search import Miss, SearchIndex
from rl.retrieval.vectors import TransformersEncoder, VectorIndex, Vectors
from tests.rl.conftest import DOCUMENTS
from warehouse.errors import RequestError
from warehouse.records import Document, DocumentSplit, Task

INDEX = SearchIndex(
    [
        Document("b", "Green Lake", "A city by the water.", "test"),
        Document("a", "Lake Country", "Green Lake, Green Lake and again Green Lake.", "test"),
        Document("d", "Twin", "Two towns share a name.", "test"),
        Document("c", "twin", "Two towns share a name.", "test"),
    ]
)


def test_a_title_comes_before_every_ranking() -> None:
    assert [found.id for found in INDEX.search(" green  LAKE ", 2)] == ["b", "a"]


def test_equal_scores_come_in_the_order_of_their_ids() -> None:
    assert [found.id for found in INDEX.search("towns share", 1)] == ["c"]
    assert [found.id for found in INDEX.search("towns share", 5)] == ["c", "d"]


def test_nothing_found_is_a_typed_miss() -> None:
    assert INDEX.find("", 3).miss is Miss.EMPTY_QUERY
    assert INDEX.find(" ?! ", 3).miss is Miss.EMPTY_QUERY
    assert INDEX.find("zebra", 3).miss is Miss.NO_HIT
    assert SearchIndex([]).find("lake", 3).miss is Miss.NO_HIT
    assert SearchIndex([Document("a", "", "", "test")]).find("lake", 3).miss is Miss.NO_HIT
    assert INDEX.search("zebra", 3) == []


def index_of(texts: list[str]) -> SearchIndex:
    return SearchIndex([Document(f"{number:05}", f"title {number}", text, "test") for number, text in enumerate(texts)])


def test_the_first_hit_alone_is_the_first_of_the_whole_ranking() -> None:
    """Queries over texts whose words are as unevenly spread as in language; both ways to the first hit are taken."""
    rng = np.random.default_rng(3)
    words = [f"w{number}" for number in range(2_000)]
    drawn = (rng.zipf(1.3, size=(4_000, 20)) - 1) % len(words)
    texts = [" ".join(words[number] for number in row[: rng.integers(1, 21)]) for row in drawn]
    index = index_of(texts)
    pruned = 0
    for place in range(500):
        numbers = rng.choice(len(words), rng.integers(1, 9)) if place % 2 else drawn[place, : rng.integers(1, 9)]
        query = " ".join(words[number] for number in numbers)
        first, whole = index.search(query, 1), index.search(query, 2)
        assert first == whole[:1]
        assert index._bm25 is not None and index._scores is not None
        known = index._bm25.get_tokens_ids(query.split())
        pruned += bool(known) and index._scores._pruned(known) is not None
    assert 25 < pruned < 475


def test_a_page_is_the_beginning_of_all_scores_in_order() -> None:
    """By score and then by id, and only documents that contain a word of the query."""
    rng = np.random.default_rng(4)
    words = [f"w{number}" for number in range(30)]
    texts = [" ".join(words[number] for number in rng.integers(0, len(words), 3)) for _ in range(200)]
    index = index_of(texts)
    assert index._bm25 is not None and index._scores is not None
    for _ in range(200):
        query = [words[number] for number in rng.choice(len(words), rng.integers(1, 4), replace=False)]
        scores = index._scores.of(index._bm25.get_tokens_ids(query))
        in_order = [place for place in sorted(range(len(index)), key=lambda place: (-scores[place], place)) if scores[place] > 0]
        for k in (2, 5, 17, len(index)):
            assert index.search(" ".join(query), k) == [index.documents[place] for place in in_order[:k]]


FIRST, SECOND, THIRD = DOCUMENTS[:3]
SPLIT = (FIRST, replace(SECOND, split=DocumentSplit.TRAIN), replace(THIRD, split=DocumentSplit.HELD_OUT))


@pytest.mark.parametrize(
    ("splits", "found"),
    [(("train", "demonstration"), {FIRST.id, SECOND.id}), (("held_out", "gsm8k", "import"), {FIRST.id, THIRD.id})],
)
def test_training_finds_no_document_of_a_suite_and_a_suite_none_of_training(splits: tuple[str, ...], found: set[str]) -> None:
    indexes = build_indexes(SPLIT)
    for split in splits:
        index = indexes.of(Task("k", "search", "Where?", ("x",), split=split))
        assert index is not None and {each.id for each in index.documents} == found
        assert {each.id for title in (SECOND.title, THIRD.title) for each in index.find(title, 5).documents} <= found
    whole = build_indexes(DOCUMENTS)
    assert whole.train is whole.held_out, "documents for both are indexed once"


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
    with pytest.raises(RequestError, match="does not contain a model"):
        build_index(DOCUMENTS, SearchConfig(by="vectors", encoder=str(tmp_path)))
