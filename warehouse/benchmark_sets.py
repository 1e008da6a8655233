"""Benchmark sets as tasks: JSON files of the user, and the published GSM8K, HumanEval, MBPP and MuSiQue.

An unreadable row is an error, since skipping rows would change the benchmark under the same name.

GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is the number after `####` in the worked solution. HumanEval (Chen
et al. 2021, arXiv 2107.03374) and MBPP (Austin et al. 2021, arXiv 2108.07732): functions judged by tests; the answer is a whole program,
the accepted answer its tests as JSON (`eval/graders/code.py`). Reference solutions are in a task's proofs, hidden from policies. MuSiQue
(Trivedi et al. 2022, arXiv 2108.00573), on HippoRAG's closed corpus: questions of two to four hops over Wikipedia passages, which are not
added to a lake's documents, where training could find them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.foreign import open_table
from warehouse.json_text import read_text_json
from warehouse.records import Document, Task


def read_rows(path: Path, what: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read the objects of a file, each with its place («row 3 of test.jsonl (line 5)»); `what` names the expected file in errors.

    Raises RequestError if the file is missing, empty or not JSON, or a row is not an object.
    """
    if not path.is_file():
        raise RequestError(f"there is no file {path}: put {what} there, or choose another file with --set source.path=FILE.")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    try:
        for number, row in enumerate(open_table(path, text="json")[1], start=1):
            place = f"row {number} of {path} (line {row.line})"
            if row.fault is not None:
                raise RequestError(f"{place}: {row.fault}; correct it.")
            if not isinstance(row.value, dict):
                raise RequestError(f"{place} is not an object but {str(row.value)[:40]!r}; correct it.")
            rows.append((place, row.value))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}.") from error
    if not rows:
        raise RequestError(f"{path} has no rows.")
    return rows


def text_in(row: Mapping[str, Any], key: str, place: str) -> str:
    """Text under `key`. Raises RequestError."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{place} has no text under {key}; correct it.")
    return value


def texts_in(row: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    """List of texts under `key`. Raises RequestError."""
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{place} has no list of strings under {key}; correct it.")
    return tuple(value)


def read_tasks(path: Path) -> list[Task]:
    """Read a task file. Raises RequestError if it is missing or malformed, a row lacks question or answers, or keys repeat."""
    tasks: dict[str, Task] = {}
    for place, row in read_rows(path, "a task set as JSON lines {question, answers}"):
        task = task_of(row, place)
        if tasks.setdefault(task.key, task) is not task:
            raise RequestError(f"{place} has the key {task.key!r} of an earlier row; give each row its own key.")
    return list(tasks.values())


def task_of(row: Mapping[str, Any], place: str, answered: bool = True) -> Task:
    """Task of a row `{question, answers}`, plus any other task fields; without `answered`, `answers` may be empty.

    Raises RequestError if a field is missing or invalid.
    """
    answers = (text_in(row, "answers", place),) if isinstance(row.get("answers"), str) else texts_in(row, "answers", place)
    if answered and not any(answer.strip() for answer in answers):
        raise RequestError(f"{place} has no accepted answer; correct it.")
    question = text_in(row, "question", place)
    key = row.get("key", row.get("id"))
    if "\x00" in str(key):
        raise RequestError(f"{place}: the key {str(key)!r:.60} contains a NUL character and could not be looked up; correct it.")
    return Task(
        key=digest([question, answers]) if key is None else str(key),
        environment=text_in(row, "environment", place) if "environment" in row else "search",
        question=question,
        answers=answers,
        formula=_formula(_inner(row, "formula", place, list), place),
        hops=_count(row, "hops", place),
        constraints=_count(row, "constraints", place),
        layers=_count(row, "layers", place),
        provenance={name: value for name, value in _inner(row, "provenance", place, dict).items() if name != "rollout"},
        proofs=_inner(row, "proofs", place, dict),
    )


def _inner(row: Mapping[str, Any], name: str, place: str, kind: type) -> Any:
    """Value under `name`, given as JSON or as JSON text (table exports)."""
    value = row.get(name)
    try:
        value = kind() if value is None else read_text_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RequestError(f"{place}: {name} is not valid JSON; correct it.") from error
    if not isinstance(value, kind):
        raise RequestError(f"{place}: {name} must be a JSON {'list' if kind is list else 'object'}; correct it.")
    return value


def _formula(triples: list[Any], place: str) -> tuple[tuple[str, str, str], ...]:
    if not all(isinstance(triple, list) and len(triple) == 3 and all(isinstance(part, str) for part in triple) for triple in triples):
        raise RequestError(f"{place}: formula has an entry that is not a triple of strings; correct it.")
    return tuple((subject, relation, value) for subject, relation, value in triples)


def _count(row: Mapping[str, Any], name: str, place: str) -> int:
    value = row.get(name, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(f"{place}: {name} is {value!r:.20}, not a count; correct it.")
    return value


MARK = "####"
"""Precedes the answer in GSM8K solutions."""
ANSWER_WITH = "Answer with the whole program and nothing else."
HUMANEVAL_COLUMNS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
MBPP_COLUMNS = ("prompt", "code", "test_list", "test_imports")
QUESTIONS, CORPUS = "musique_train.json", "musique_train_corpus.json"
SOURCE = "musique"


def read_gsm8k(path: Path) -> list[Task]:
    """Problems of `test.jsonl` or `train.jsonl`, keyed by row number. Raises RequestError."""
    rows = enumerate(read_rows(path, "GSM8K's test.jsonl"))
    return [gsm8k_task(f"{path.stem}-{number}", row, place) for number, (place, row) in rows]


def gsm8k_task(key: str, row: Mapping[str, Any], place: str) -> Task:
    """Task of a row `question, answer`. Raises RequestError."""
    solution = text_in(row, "answer", place)
    final = solution.rpartition(MARK)[2].strip()
    if MARK not in solution or not final:
        raise RequestError(f"{place} has no number after {MARK} in its answer; correct it.")
    return _solved_task(key, text_in(row, "question", place), final, solution, "gsm8k", "gsm8k")


def read_humaneval(path: Path) -> list[Task]:
    """Problems of `HumanEval.jsonl.gz`. Raises RequestError."""
    return [humaneval_task(row, place) for place, row in read_rows(path, "HumanEval.jsonl.gz")]


def humaneval_task(row: Mapping[str, Any], place: str) -> Task:
    """Task of a row with `HUMANEVAL_COLUMNS`. Raises RequestError."""
    prompt, solution = text_in(row, "prompt", place), text_in(row, "canonical_solution", place)
    gold = {"prompt": prompt, "test": text_in(row, "test", place), "entry_point": text_in(row, "entry_point", place)}
    key = text_in(row, "task_id", place).replace("/", "-")
    question = f"Complete this Python program.\n{prompt}\n{ANSWER_WITH}"
    return _solved_task(key, question, json.dumps(gold), prompt + solution, "humaneval", "code")


def read_mbpp(path: Path) -> list[Task]:
    """Problems of MBPP's sanitized `test.jsonl`, keyed by row number. Raises RequestError."""
    rows = enumerate(read_rows(path, "MBPP's sanitized test.jsonl"))
    return [mbpp_task(f"{path.stem}-{number}", row, place) for number, (place, row) in rows]


def mbpp_task(key: str, row: Mapping[str, Any], place: str) -> Task:
    """Task of a row with `MBPP_COLUMNS`. Raises RequestError."""
    tests = texts_in(row, "test_list", place)
    gold = {"test_list": list(tests), "test_imports": list(texts_in(row, "test_imports", place))}
    question = f"{text_in(row, 'prompt', place)}\nIt must pass, for example: {next(iter(tests), '')}\n{ANSWER_WITH}"
    return _solved_task(key, question, json.dumps(gold), text_in(row, "code", place), "mbpp", "code")


def _solved_task(key: str, question: str, answer: str, solution: str, source: str, verifier: str) -> Task:
    provenance = {"source": source, "verifier": verifier}
    return Task(key, "python", question, (answer,), provenance=provenance, proofs={"solution": solution})


def read_musique(folder: Path) -> tuple[list[Task], list[Document]]:
    """Answerable questions, and all passages of the corpus. Raises RequestError."""
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
    """A passage, identified by number since titles repeat."""
    return Document(f"{SOURCE}:{number}", text_in(row, "title", place), text_in(row, "text", place), SOURCE)
