"""What the readers of foreign trajectories share: rows of JSON, the pieces of a run, the records made of them, and the quarantine.

A run is kept whole: every call that stands in it is a turn, those that were written and never run as well, and what a format has
beyond a trajectory goes into `provenance`. A run that holds no action, or breaks off before its answer, is *invalid*: it says
nothing about the policy and is never a failure. A row that is not of the format is a `Failure` with its line and its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

from warehouse.arrow_rows import is_saved
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.json_rows import Row
from warehouse.records import NOT_RUN, Call, Failure, Outcome, Score, StopReason, Task, Trajectory, Turn

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


class MalformedRow(ValueError):
    """Why a row is not of its format."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """One action as it was written (`text`, as is), the call in it if it has one, and what came back."""

    text: str
    tool: str | None
    arguments: str | None = None
    response: str = ""
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, as far as its format says it.

    Attributes:
        outcome, reward: the verdict that came with it, if one did.
        stop: why it ended; None where the format does not say, and then only an answer ends it.
        error: what broke it, if something did.
    """

    outcome: Outcome | None = None
    reward: float | None = None
    stop: StopReason | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ImportedRuns:
    """What a reader made of a file: its rows in all, the records of the good ones, and a failure for each of the others."""

    rows: int
    records: tuple[Task | Trajectory | Score, ...]
    failures: tuple[Failure, ...]

    @property
    def trajectories(self) -> list[Trajectory]:
        """The runs alone."""
        return [record for record in self.records if isinstance(record, Trajectory)]


@dataclass(slots=True)
class RunCollector:
    """Gathers what a reader yields row by row."""

    format: str
    rows: int = 0
    records: list[Task | Trajectory | Score] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    filled: bool = False
    """Whether the arguments of the file's calls have the nulls of a struct (`schemas.py`)."""
    _copies: Counter[str] = field(default_factory=Counter)

    def identify(self, path: Path, policy: str, row: Any) -> str:
        """The id of a run, from its content; a row that stands in its file again is another sample, and has an id of its own."""
        identifier = f"{self.format}-{digest([policy, row])}"
        self._copies[f"{path} {identifier}"] += 1
        again = self._copies[f"{path} {identifier}"] - 1
        return f"{identifier}-{again}" if again else identifier

    def add_run(self, row: Row, task: Task, policy: str, turns: Sequence[Turn], end: RunEnd, verifier: str, **about: Any) -> None:
        """Add the run in `row`, its task and the verdict that came with it as a score of `verifier`; `about` goes into its provenance."""
        provenance = {"file": row.path.name, "line": row.line, **about, "row": row.value}
        run = trajectory_of(self.identify(row.path, policy, row.value), task, policy, turns, end, provenance)
        self.records += [task, run]
        if run.outcome is not None and run.outcome is not Outcome.INVALID:
            self.records.append(Score(run.id, verifier, "released", run.reward, run.outcome))

    def quarantine(self, path: Path, line: int, reason: str, text: str) -> None:
        """Set a row aside; `text` is its beginning."""
        item = {"file": path.name, "line": line, "text": text[:500]}
        self.failures.append(Failure("import", f"{self.format}_row", f"{path.name}, line {line}: {reason}", item))

    def quarantine_file(self, path: Path, reason: str) -> None:
        """Set a whole file aside, and whatever was read of it."""
        self.records.clear()
        self.failures[:] = [Failure("import", f"{self.format}_file", reason, {"file": path.name})]

    def done(self) -> ImportedRuns:
        """All of it."""
        return ImportedRuns(self.rows, tuple(self.records), tuple(self.failures))


Reader = Callable[[dict[str, Any], Row, RunCollector], None]
"""Adds the records of one object to the collector, all or none; raises MalformedRow."""


def files_of(path: Path, *suffixes: str) -> list[Path]:
    """`path` itself, or the files with one of `suffixes` in it where it is a folder. Raises RequestError where there is none."""
    files = (
        sorted(file for file in path.iterdir() if file.suffix in suffixes and file.is_file())
        if path.is_dir() and not is_saved(path)
        else [path] * path.exists()
    )
    if not files:
        raise RequestError(f"there is no file {path}{' with ' + ' or '.join(suffixes) if path.is_dir() else ''}; name the file to import.")
    return files


def task_of(form: str, question: str, answers: Sequence[str]) -> Task:
    """The task of a run; the same question with the same answers is the same task."""
    key = f"{form}-{digest([question, list(answers)])}"
    return Task(key, form, question, tuple(answers), split="import", provenance={"format": form})


def texts_of(value: Any) -> tuple[str, ...]:
    """Accepted answers: none, one, a list of them, or SQuAD's object with them under `text`. Raises MalformedRow for anything else."""
    if isinstance(value, dict) and isinstance(value.get("text"), list | str) and value.keys() <= {"text", "answer_start"}:
        listed = value["text"] if isinstance(value["text"], list) else [value["text"]]
        value = [text for place, text in enumerate(listed) if text not in listed[:place]]
    if isinstance(value, list | dict) and is_calls(value):
        raise MalformedRow("the answer is a list of tool calls (as xLAM has them), which no verifier of answers judges")
    values = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in values):
        raise MalformedRow("an accepted answer is neither text nor number")
    if any(isinstance(one, float) and not isfinite(one) for one in values):
        raise MalformedRow("an accepted answer is no finite number")
    return tuple(text for one in map(whole, values) if (text := str(one)).strip())


def is_calls(value: Any) -> bool:
    """Whether a value is a tool call or a list of them."""
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls)


def first_of(row: dict[str, Any], *names: str) -> Any:
    """The value under the first of `names` that has one; a table has null where a row has none."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def whole(value: Any) -> Any:
    """A whole number as such where it is a float, as which tables with gaps and JSON of some programs have it; else the value."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def number_of(value: Any, name: str) -> float | None:
    """A figure, which may stand as text, or None where there is none. Raises MalformedRow where it is no finite number."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if value is not None and not isinstance(value, bool | int | float):
        raise MalformedRow(f"{name} is no number")
    try:
        number = None if value is None else float(value)
    except OverflowError as error:
        raise MalformedRow(f"{name} is a number beyond all measure") from error
    if number is not None and not isfinite(number):
        raise MalformedRow(f"{name} is no finite number")
    return number


def verdict_of(value: float | None, full: float = 1.0) -> Outcome | None:
    """Full marks (`full` to 1) are a success and anything less a failure; beyond 1 the scale is not known, and so is the verdict.

    The tolerance of 1e-6 is that of tau-bench (`tau_bench/types.py`).
    """
    if value is None or value > 1 + 1e-6:
        return None
    return Outcome.SUCCESS if value >= full - 1e-6 else Outcome.FAILURE


def turns_of(calls: Sequence[ParsedAction]) -> tuple[Turn, ...]:
    """The turns of a run: no token ids and no times, for none were recorded."""
    return tuple(
        Turn(
            index, (), (), call.text, call.tool, call.arguments, (), call.response, None, call.outcome, None, 0,
            calls=() if call.tool is None else (Call(call.tool, call.arguments, call.outcome, call.response),),
        )
        for index, call in enumerate(calls)
    )  # fmt: skip


def trajectory_of(identifier: str, task: Task, policy: str, turns: Sequence[Turn], end: RunEnd, provenance: dict[str, Any]) -> Trajectory:
    """The run as a trajectory; invalid, whatever its verdict, where it holds no action, was broken off, or was broken."""
    run = Trajectory(
        identifier, task.key, policy, "import", 0, (), tuple(turns), end.stop or StopReason.ANSWERED, end.outcome,
        end.reward, 0, None, None, provenance=provenance,
    )  # fmt: skip
    error = _broken_off(run, end)
    if error is None:
        return run
    return replace(run, stop_reason=StopReason.FAULT, outcome=Outcome.INVALID, reward=None, error=error)


def _broken_off(run: Trajectory, end: RunEnd) -> str | None:
    if end.error is not None or not run.turns:
        return end.error or "empty: the run holds no action"
    return None if end.stop is not None or run.answer is not None else "cancelled: the run ends before an answer"


def mark_not_run(calls: Iterable[ParsedAction], response: str) -> list[ParsedAction]:
    """The calls of one message of which only the first was run and got `response`; the others are marked as not run."""
    first, *others = calls
    return [replace(first, response=response), *(replace(call, outcome=NOT_RUN) for call in others)]


def read_files(form: str, path: Path, suffixes: tuple[str, ...], read: Callable[[Path, RunCollector], None]) -> ImportedRuns:
    """What `read` makes of a file, or of each of the files with `suffixes` in a folder, of which one that cannot be read is set aside.

    Raises:
        RequestError: there is no such file, or the one that is named cannot be read.
    """
    collectors = []
    for file in files_of(path, *suffixes):
        collectors.append(RunCollector(form))
        try:
            read(file, collectors[-1])
        except RequestError as error:
            if file == path:
                raise
            collectors[-1].quarantine_file(file, str(error))
    parts = [collector.done() for collector in collectors]
    records = tuple(chain.from_iterable(part.records for part in parts))
    return ImportedRuns(sum(part.rows for part in parts), records, tuple(chain.from_iterable(part.failures for part in parts)))
