"""Training tasks and suites search documents of their own, by words and by vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl.retrieval.indexes import Indexes, build_indexes
from tests.rl.conftest import DOCUMENTS
from warehouse.records import DocumentSplit, Task

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
