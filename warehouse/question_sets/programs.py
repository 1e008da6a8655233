"""HumanEval (Chen et al. 2021, arXiv 2107.03374) and MBPP (Austin et al. 2021, arXiv 2108.07732): a function to write, judged by tests.

The answer of a task is a whole program in both. Its accepted answer is the tests as JSON, in the forms of `eval.graders.code`, with HumanEval's
prompt, whose functions some tests use; the reference solution stands in its proofs, where no policy sees it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from warehouse.question_sets.rows import read_rows, text_in, texts_in
from warehouse.records import Task

ANSWER_WITH = "Answer with the whole program and nothing else."


def read_humaneval(path: Path) -> list[Task]:
    """The problems of `HumanEval.jsonl.gz`. Raises RequestError where it is missing or a row cannot be read."""
    tasks = []
    for place, row in read_rows(path, "HumanEval.jsonl.gz"):
        prompt, solution = text_in(row, "prompt", place), text_in(row, "canonical_solution", place)
        gold = {"prompt": prompt, "test": text_in(row, "test", place), "entry_point": text_in(row, "entry_point", place)}
        question = f"Complete this Python program.\n{prompt}\n{ANSWER_WITH}"
        tasks.append(_task(text_in(row, "task_id", place).replace("/", "-"), question, gold, prompt + solution, "humaneval"))
    return tasks


def read_mbpp(path: Path) -> list[Task]:
    """The problems of MBPP's sanitized `test.jsonl`, keyed by their place in it. Raises RequestError as `read_humaneval` does."""
    tasks = []
    for number, (place, row) in enumerate(read_rows(path, "MBPP's sanitized test.jsonl")):
        tests = texts_in(row, "test_list", place)
        gold = {"test_list": list(tests), "test_imports": list(texts_in(row, "test_imports", place))}
        question = f"{text_in(row, 'prompt', place)}\nIt must pass, for example: {next(iter(tests), '')}\n{ANSWER_WITH}"
        tasks.append(_task(f"{path.stem}-{number}", question, gold, text_in(row, "code", place), "mbpp"))
    return tasks


def _task(key: str, question: str, gold: Mapping[str, object], solution: str, source: str) -> Task:
    return Task(
        key=key,
        environment="python",
        question=question,
        answers=(json.dumps(gold),),
        provenance={"source": source, "verifier": "code"},
        proofs={"solution": solution},
    )
