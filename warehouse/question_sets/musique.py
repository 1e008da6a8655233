"""MuSiQue (Trivedi et al. 2022, arXiv 2108.00573) on the closed corpus of HippoRAG: questions of two to four hops over Wikipedia passages.

For evaluation only: nothing here enters a lake's documents, where training could find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warehouse.errors import RequestError
from warehouse.question_sets.rows import read_rows, text_in, texts_in
from warehouse.records import Document, Task

QUESTIONS, CORPUS = "musique_train.json", "musique_train_corpus.json"
SOURCE = "musique"


def read_musique(folder: Path) -> tuple[list[Task], list[Document]]:
    """The questions that can be answered, and all passages of the corpus.

    Raises:
        RequestError: a file is missing, broken, or a row lacks what it needs.
    """
    questions = read_rows(folder / QUESTIONS, f"MuSiQue's {QUESTIONS}")
    passages = read_rows(folder / CORPUS, f"MuSiQue's {CORPUS}")
    tasks = [_task(row, place) for place, row in questions if row.get("answerable", True)]
    return tasks, [_passage(number, row, place) for number, (place, row) in enumerate(passages)]


def _task(row: Mapping[str, Any], place: str) -> Task:
    steps = row.get("question_decomposition")
    if not isinstance(steps, list) or not steps:
        raise RequestError(f"{place} has no question_decomposition; correct it.")
    answers = (text_in(row, "answer", place), *texts_in(row, "answer_aliases", place))
    return Task(
        key=text_in(row, "id", place),
        environment="search",
        question=text_in(row, "question", place),
        answers=tuple(dict.fromkeys(answers)),
        hops=len(steps),
        layers=len(steps),
        provenance={"source": SOURCE},
    )


def _passage(number: int, row: Mapping[str, Any], place: str) -> Document:
    """Several passages bear one title, so their place in the corpus names them."""
    return Document(f"{SOURCE}:{number}", text_in(row, "title", place), text_in(row, "text", place), SOURCE)
