"""Training tasks and suites search documents of their own, by words and by vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rl.retrieval.config import SearchConfig
from rl.retrieval.indexes import Indexes, build_indexes
from rl.retrieval.vectors import VectorIndex
from tests.rl.conftest import DOCUMENTS
from warehouse.records import Document, DocumentSplit, Task

FIRST, SECOND, THIRD = DOCUMENTS[:3]
SPLIT = (FIRST, replace(SECOND, split=DocumentSplit.TRAIN), replace(THIRD, split=DocumentSplit.HELD_OUT))


def task(split: str) -> Task:
    return Task("k", "search", "Where?", ("x",), split=split)


def found(indexes: Indexes, split: str) -> set[str]:
    index = indexes.of(task(split))
    assert index is not None
    return {document.id for document in index.documents}


@pytest.mark.parametrize("split", ["train", "demonstration"])
def test_training_finds_no_document_of_a_suite(split: str) -> None:
    indexes = build_indexes(SPLIT)
    assert found(indexes, split) == {FIRST.id, SECOND.id}
    index = indexes.of(task(split))
    assert index is not None and THIRD not in index.find(THIRD.title, 5).documents


@pytest.mark.parametrize("split", ["held_out", "gsm8k", "import"])
def test_a_suite_finds_its_own_and_what_is_for_both(split: str) -> None:
    assert found(build_indexes(SPLIT), split) == {FIRST.id, THIRD.id}


def test_documents_for_both_are_indexed_once() -> None:
    indexes = build_indexes(DOCUMENTS)
    assert indexes.train is indexes.held_out


def test_where_there_is_no_document_there_is_no_index() -> None:
    assert build_indexes([]) == Indexes(None, None) and build_indexes([]).any is None
    alone = build_indexes([replace(FIRST, split=DocumentSplit.HELD_OUT)])
    assert alone.train is None and alone.any is alone.held_out is not None


def test_by_vectors_each_document_is_encoded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    encoded: list[str] = []

    class Letters:
        def encode(self, texts: list[str]) -> object:
            import numpy as np

            encoded.extend(texts)
            return np.array([[text.count(letter) + 1.0 for letter in "abcdefgh"] for text in texts], np.float32)

    def vectors(documents: list[Document], config: SearchConfig) -> VectorIndex:
        return VectorIndex(documents, Letters())

    monkeypatch.setattr("rl.retrieval.indexes.build_vectors", vectors)
    indexes = build_indexes(SPLIT, SearchConfig(by="vectors", encoder=str(tmp_path)))
    assert len(encoded) == 3
    assert found(indexes, "train") == {FIRST.id, SECOND.id} and found(indexes, "held_out") == {FIRST.id, THIRD.id}
    index = indexes.of(task("held_out"))
    assert index is not None and index.find(f"{THIRD.title} {THIRD.text}", 1).documents == (SPLIT[2],)
