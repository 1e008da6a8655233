"""The released WebShaper format, one JSON object per line: bad rows are quarantined, good ones written back unchanged.

A row has `id`, `question`, `answer`, `formalization` (triples) and `urls`. An entry can pack several triples with " & ": packed columns
have the same number of parts, the others apply to all. An ampersand counts only if every part is a node, so `C@Taylor & Francis` is one
constant. As in the released rows, constants connect triples. A constant without its prefix is a defect and is not repaired.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.formulas.triples import CONSTANT, TARGET, UNION, VARIABLE, FormulaDefect, count_constants, depth, validate
from warehouse.digests import digest
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.json_text import read_json
from warehouse.records import Failure, Task, Triple

PACK = " & "
FIELDS = ("id", "question", "answer", "formalization", "urls")
SPLIT = "webshaper"
"""Split of imported tasks; no stage draws from it by default."""

Packing = tuple[int, int, str]
"""A packed entry: first triple, number of triples, and packed columns (a subset of `s`, `r`, `o`)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A well-formed row: fields, unpacked triples, packing, file and line number (from 1)."""

    fields: dict[str, Any]
    formula: tuple[Triple, ...]
    packing: tuple[Packing, ...]
    file: str
    line: int


class Unreadable(ValueError):
    """A quarantined row; `kind` is the defect."""

    def __init__(self, kind: str, problems: Sequence[str]) -> None:
        super().__init__(problems[0] + (f", and {len(problems) - 1} more" if len(problems) > 1 else ""))
        self.kind, self.problems = kind, list(problems)


def read_rows(path: Path) -> tuple[list[Row], list[Failure]]:
    """Read a JSONL file; return well-formed rows and a failure for each other row. Blank lines are skipped.

    Raises:
        RequestError: the file does not exist.
    """
    if not path.is_file():
        raise RequestError(f"there is no file {path}; choose a file of JSON lines in the WebShaper form.")
    rows: list[Row] = []
    failures: list[Failure] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                rows.append(_read_row(line, path.name, number))
            except Unreadable as error:
                failures.append(_failure(error, line, path.name, number))
    return rows, failures


def parse_formalization(entries: Sequence[Any]) -> tuple[tuple[Triple, ...], tuple[Packing, ...]]:
    """Triples of a formalization and their packing. Raises Unreadable with the first `FormulaDefect` or `packing` as its kind."""
    triples: list[Any] = []
    packing: list[Packing] = []
    for entry in entries:
        parts, places = _unpack(entry)
        if places:
            packing.append((len(triples), len(parts), places))
        triples += parts
    if problems := validate(triples, constants_connect=True):
        problems.sort(key=lambda problem: list(FormulaDefect).index(problem.defect))
        raise Unreadable(str(problems[0].defect), [problem.detail for problem in problems])
    return tuple((subject, relation, value) for subject, relation, value in triples), tuple(packing)


def print_formalization(formula: Sequence[Triple], packing: Iterable[Packing] = ()) -> list[list[str]]:
    """Inverse of `parse_formalization`."""
    packed = {first: (count, places) for first, count, places in packing}
    entries: list[list[str]] = []
    number = 0
    while number < len(formula):
        count, places = packed.get(number, (1, ""))
        columns = zip("sro", zip(*formula[number : number + count], strict=True), strict=True)
        entries.append([PACK.join(texts) if place in places else texts[0] for place, texts in columns])
        number += count
    return entries


def task_of(row: Row) -> Task:
    """Task of a row; its provenance keeps all fields. Several answers are joined by " | "."""
    known = {name: row.fields[name] for name in FIELDS if name in row.fields and name != "formalization"}
    identity = row.fields.get("id") or digest([row.fields["question"], row.fields["answer"], row.formula])
    layers = depth(row.formula)
    return Task(
        key=f"webshaper-{identity}",
        environment="search",
        question=row.fields["question"],
        answers=tuple(row.fields["answer"].split(UNION)),
        formula=row.formula,
        split=SPLIT,
        hops=layers,
        constraints=count_constants(row.formula),
        layers=layers,
        provenance={
            "source": "webshaper",
            **known,
            "other": {name: value for name, value in row.fields.items() if name not in FIELDS},
            "fields": list(row.fields),
            "packing": [list(entry) for entry in row.packing],
            "place": {"file": row.file, "line": row.line},
        },
    )


def fields_of(task: Task) -> dict[str, Any]:
    """Row of a task: an imported row unchanged, or a new row with the task key as id.

    Raises:
        Unreadable: the row would not parse back to the task's formula.
    """
    names = task.provenance.get("fields", FIELDS)
    ours = {"id": task.key, "question": task.question, "answer": UNION.join(task.answers), "urls": []}
    known = {**task.provenance, **task.provenance["other"]} if "fields" in task.provenance else ours
    packing = [(first, count, places) for first, count, places in task.provenance.get("packing", ())]
    entries = print_formalization(task.formula, packing)
    if parse_formalization(entries)[0] != task.formula:
        raise Unreadable("packing", [f"the formula of {task.key} has an ampersand that would be read as packing"])
    return {name: entries if name == "formalization" else known[name] for name in names}


def write_rows(tasks: Iterable[Task], path: Path) -> tuple[int, list[Failure]]:
    """Write tasks with formulas: imported rows in file order, then others by key. Return the number written and failures.

    Raises:
        RequestError: `path` exists.
    """
    if path.exists():
        raise RequestError(f"{path} already exists: choose another path or remove it.")
    written, failures = 0, []
    with drafted(path) as draft, draft.open("w", encoding="utf-8") as file:
        for task in sorted((task for task in tasks if task.formula), key=_order):
            try:
                file.write(json.dumps(fields_of(task), ensure_ascii=False) + "\n")
                written += 1
            except Unreadable as error:
                failures.append(Failure("export", error.kind, str(error), {"key": task.key}))
    return written, failures


def _order(task: Task) -> tuple[bool, str, int, str]:
    place = task.provenance.get("place", {})
    return not place, place.get("file", ""), place.get("line", 0), task.key


def _read_row(line: bytes, file: str, number: int) -> Row:
    fields = _check_fields(_parse_json(line))
    formula, packing = parse_formalization(fields["formalization"])
    return Row(fields, formula, packing, file, number)


def _parse_json(line: bytes) -> Any:
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
        row = read_json(text)
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()  # reject lone surrogates and NaN, which cannot be stored
    except ValueError as error:
        raise Unreadable("json", [f"not valid JSON: {error}"]) from error
    return row


def _check_fields(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise Unreadable("json", [f"a {type(row).__name__} instead of an object"])
    problems = [f"{name} is not a string" for name in ("question", "answer") if not _is_text(row.get(name))]
    problems += ["id is not a string"] if "id" in row and not _is_text(row["id"]) else []
    problems += [] if isinstance(row.get("formalization"), list) else ["formalization is not a list"]
    urls = row.get("urls", [])
    problems += [] if isinstance(urls, list) and all(isinstance(url, str) for url in urls) else ["urls is not a list of strings"]
    if problems:
        raise Unreadable("field", problems)
    return row


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _unpack(entry: Any) -> tuple[list[Any], str]:
    if not isinstance(entry, list | tuple) or len(entry) != 3 or not all(isinstance(part, str) for part in entry):
        return [entry], ""
    subjects, values = _nodes(entry[0]), _nodes(entry[2])
    if len(subjects) == len(values) == 1:
        return [tuple(entry)], ""
    columns = (subjects, entry[1].split(PACK), values)
    count = max(len(subjects), len(values))
    if any(len(column) not in (1, count) for column in columns):
        sizes = " and ".join(str(len(column)) for column in columns)
        raise Unreadable("packing", [f"{entry!r} packs {sizes} parts, which cannot be paired"])
    places = "".join(place for place, column in zip("sro", columns, strict=True) if len(column) == count)
    return list(zip(*(column * (count // len(column)) for column in columns), strict=True)), places


def _nodes(text: str) -> list[str]:
    parts = text.split(PACK)
    return parts if all(part == TARGET or part.startswith((VARIABLE, CONSTANT)) for part in parts) else [text]


def _failure(error: Unreadable, line: bytes, file: str, number: int) -> Failure:
    item = {"file": file, "line": number, "problems": error.problems, "row": line.decode(errors="backslashreplace").rstrip("\r\n")}
    return Failure("import", error.kind, f"line {number}: {error}", item)
