"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is the number after `####` in the worked solution."""

from __future__ import annotations

from pathlib import Path

from warehouse.errors import RequestError
from warehouse.question_sets.rows import read_rows, text_in
from warehouse.records import Task

MARK = "####"


def read_gsm8k(path: Path) -> list[Task]:
    """The problems of `test.jsonl` or `train.jsonl`, keyed by their place in it.

    Raises:
        RequestError: the file is missing, broken, or a row has no question or no number.
    """
    tasks = []
    for number, (place, row) in enumerate(read_rows(path, "GSM8K's test.jsonl")):
        solution = text_in(row, "answer", place)
        final = solution.rpartition(MARK)[2].strip()
        if MARK not in solution or not final:
            raise RequestError(f"{place} has no number after {MARK} in its answer; correct it.")
        tasks.append(
            Task(
                key=f"{path.stem}-{number}",
                environment="python",
                question=text_in(row, "question", place),
                answers=(final,),
                provenance={"source": "gsm8k", "verifier": "gsm8k"},
                proofs={"solution": solution},
            )
        )
    return tasks
