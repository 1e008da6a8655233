"""Published benchmark sets as tasks: GSM8K, HumanEval, MBPP and MuSiQue, for evaluation.

GSM8K (Cobbe et al. 2021, arXiv 2110.14168) has word problems whose answer is the number after `####` in the worked solution. HumanEval
(Chen et al. 2021, arXiv 2107.03374) and MBPP (Austin et al. 2021, arXiv 2108.07732) ask for a function that tests judge: the answer is a
whole program, its accepted answer the tests as JSON (`eval/graders/code.py`), with HumanEval's prompt, whose functions some tests use.
Reference solutions stand in the proofs of a task, where no policy sees them. MuSiQue (Trivedi et al. 2022, arXiv 2108.00573), on the closed
corpus of HippoRAG, has questions of two to four hops over Wikipedia passages; these do not enter a lake's documents, where training
could find them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warehouse.benchmark_sets.files import read_rows, text_in, texts_in
from warehouse.errors import RequestError
from warehouse.records import Document, Task

MARK = "####"
"""Stands before the answer in GSM8K's solutions."""
ANSWER_WITH = "Answer with the whole program and nothing else."
HUMANEVAL_COLUMNS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
MBPP_COLUMNS = ("prompt", "code", "test_list", "test_imports")
QUESTIONS, CORPUS = "musique_train.json", "musique_train_corpus.json"
SOURCE = "musique"


def read_gsm8k(path: Path) -> list[Task]:
    """The problems of `test.jsonl` or `train.jsonl`, keyed by their place in it.

    Raises:
        RequestError: the file is missing, broken, or a row has no question or no number.
    """
    rows = enumerate(read_rows(path, "GSM8K's test.jsonl"))
    return [gsm8k_task(f"{path.stem}-{number}", row, place) for number, (place, row) in rows]


def gsm8k_task(key: str, row: Mapping[str, Any], place: str) -> Task:
    """The problem of a row `question, answer`. Raises RequestError where it has no question or no number."""
    solution = text_in(row, "answer", place)
    final = solution.rpartition(MARK)[2].strip()
    if MARK not in solution or not final:
        raise RequestError(f"{place} has no number after {MARK} in its answer; correct it.")
    return _solved_task(key, text_in(row, "question", place), final, solution, "gsm8k", "gsm8k")


def read_humaneval(path: Path) -> list[Task]:
    """The problems of `HumanEval.jsonl.gz`. Raises RequestError where it is missing or a row cannot be read."""
    return [humaneval_task(row, place) for place, row in read_rows(path, "HumanEval.jsonl.gz")]


def humaneval_task(row: Mapping[str, Any], place: str) -> Task:
    """The problem of a row with `HUMANEVAL_COLUMNS`. Raises RequestError where one of them has no text."""
    prompt, solution = text_in(row, "prompt", place), text_in(row, "canonical_solution", place)
    gold = {"prompt": prompt, "test": text_in(row, "test", place), "entry_point": text_in(row, "entry_point", place)}
    key = text_in(row, "task_id", place).replace("/", "-")
    question = f"Complete this Python program.\n{prompt}\n{ANSWER_WITH}"
    return _solved_task(key, question, json.dumps(gold), prompt + solution, "humaneval", "code")


def read_mbpp(path: Path) -> list[Task]:
    """The problems of MBPP's sanitized `test.jsonl`, keyed by their place in it. Raises RequestError as `read_humaneval` does."""
    rows = enumerate(read_rows(path, "MBPP's sanitized test.jsonl"))
    return [mbpp_task(f"{path.stem}-{number}", row, place) for number, (place, row) in rows]


def mbpp_task(key: str, row: Mapping[str, Any], place: str) -> Task:
    """The problem of a row with `MBPP_COLUMNS`. Raises RequestError where one of them is not what it should be."""
    tests = texts_in(row, "test_list", place)
    gold = {"test_list": list(tests), "test_imports": list(texts_in(row, "test_imports", place))}
    question = f"{text_in(row, 'prompt', place)}\nIt must pass, for example: {next(iter(tests), '')}\n{ANSWER_WITH}"
    return _solved_task(key, question, json.dumps(gold), text_in(row, "code", place), "mbpp", "code")


def _solved_task(key: str, question: str, answer: str, solution: str, source: str, verifier: str) -> Task:
    """A task of the Python environment with its reference solution."""
    provenance = {"source": source, "verifier": verifier}
    return Task(key, "python", question, (answer,), provenance=provenance, proofs={"solution": solution})


def read_musique(folder: Path) -> tuple[list[Task], list[Document]]:
    """The questions that can be answered, and all passages of the corpus.

    Raises:
        RequestError: a file is missing, broken, or a row lacks what it needs.
    """
    questions = read_rows(folder / QUESTIONS, f"MuSiQue's {QUESTIONS}")
    passages = read_rows(folder / CORPUS, f"MuSiQue's {CORPUS}")
    tasks = [_musique_task(row, place) for place, row in questions if row.get("answerable", True)]
    return tasks, [_passage(number, row, place) for number, (place, row) in enumerate(passages)]


def _musique_task(row: Mapping[str, Any], place: str) -> Task:
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
