"""What the readers of foreign trajectories share: the pieces of a run, the record made of them, and the quarantine.

A run is kept whole: every call that stands in it is a turn, those that were written and never run as well, and what a format has
beyond a trajectory goes into `provenance`. A run that holds no action, or breaks off before its answer, is *invalid*: it says
nothing about the policy and is never a failure. A row that is not of the format is a `Failure` with its line and its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.records import NOT_RUN, Call, Failure, Outcome, Score, StopReason, Task, Trajectory, Turn


class RowFault(ValueError):
    """Why a row is not of its format."""


@dataclass(frozen=True, slots=True)
class Written:
    """One action as it was written (`text`, as is), the call in it if it has one, and what came back."""

    text: str
    tool: str | None
    arguments: str | None = None
    response: str = ""
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class End:
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
class ForeignRuns:
    """What a reader made of a file: its rows in all, the records of the good ones, and a failure for each of the others."""

    rows: int
    records: tuple[Task | Trajectory | Score, ...]
    failures: tuple[Failure, ...]

    @property
    def trajectories(self) -> list[Trajectory]:
        """The runs alone."""
        return [record for record in self.records if isinstance(record, Trajectory)]


@dataclass(slots=True)
class Collector:
    """Gathers what a reader yields row by row."""

    format: str
    rows: int = 0
    records: list[Task | Trajectory | Score] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)

    def identify(self, path: Path, policy: str, row: Any) -> str:
        """The id of a run, from its content; a row that stands in its file again is another sample, and has an id of its own."""
        identifier = f"{self.format}-{digest([policy, row])}"
        self._seen[f"{path} {identifier}"] += 1
        again = self._seen[f"{path} {identifier}"] - 1
        return f"{identifier}-{again}" if again else identifier

    def quarantine(self, path: Path, line: int, reason: str, text: str) -> None:
        """Set a row aside; `text` is its beginning."""
        item = {"file": path.name, "line": line, "text": text[:500]}
        self.failures.append(Failure("import", f"{self.format}_row", f"{path.name}, line {line}: {reason}", item))

    def done(self) -> ForeignRuns:
        """All of it."""
        return ForeignRuns(self.rows, tuple(self.records), tuple(self.failures))


def files_of(path: Path, *suffixes: str) -> list[Path]:
    """`path` itself, or the files with one of `suffixes` in it where it is a folder. Raises RequestError where there is none."""
    files = (
        sorted(file for file in path.iterdir() if file.suffix in suffixes and file.is_file()) if path.is_dir() else [path] * path.is_file()
    )
    if not files:
        raise RequestError(f"there is no file {path}{' with ' + ' or '.join(suffixes) if path.is_dir() else ''}; name the file to import.")
    return files


def task_of(form: str, question: str, answers: Sequence[str]) -> Task:
    """The task of a run; the same question with the same answers is the same task."""
    key = f"{form}-{digest([question, list(answers)])}"
    return Task(key, form, question, tuple(answers), split="import", provenance={"format": form})


def texts_of(value: Any) -> tuple[str, ...]:
    """Accepted answers: none, one, or a list of them. Raises RowFault for anything else."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in values):
        raise RowFault("an accepted answer is neither text nor number")
    return tuple(text for one in values if (text := str(one)).strip())


def number_of(value: Any, name: str) -> float | None:
    """A figure, or None where there is none. Raises RowFault where it is no number."""
    if value is not None and not isinstance(value, bool | int | float):
        raise RowFault(f"{name} is no number")
    try:
        return None if value is None else float(value)
    except OverflowError as error:
        raise RowFault(f"{name} is a number beyond all measure") from error


def verdict_of(value: float | None, full: float = 1.0) -> Outcome | None:
    """Full marks (`full` to 1) are a success and anything less a failure; beyond 1 the scale is not known, and so is the verdict.

    The tolerance of 1e-6 is that of tau-bench (`tau_bench/types.py`).
    """
    if value is None or value > 1 + 1e-6:
        return None
    return Outcome.SUCCESS if value >= full - 1e-6 else Outcome.FAILURE


def scores_of(run: Trajectory, verifier: str) -> list[Score]:
    """The verdict that came with a run as a score, unless the run is invalid or the verdict is not known."""
    if run.outcome is None or run.outcome is Outcome.INVALID:
        return []
    return [Score(run.id, verifier, "released", run.reward, run.outcome)]


def turns_of(calls: Sequence[Written]) -> tuple[Turn, ...]:
    """The turns of a run: no token ids and no times, for none were recorded."""
    return tuple(
        Turn(
            index, (), (), call.text, call.tool, call.arguments, (), call.response, None, call.outcome, None, 0,
            calls=() if call.tool is None else (Call(call.tool, call.arguments, call.outcome, call.response),),
        )
        for index, call in enumerate(calls)
    )  # fmt: skip


def trajectory_of(identifier: str, task: Task, policy: str, turns: Sequence[Turn], end: End, provenance: dict[str, Any]) -> Trajectory:
    """The run as a trajectory; invalid, whatever its verdict, where it holds no action, was broken off, or was broken."""
    run = Trajectory(
        identifier, task.key, policy, "import", 0, (), tuple(turns), end.stop or StopReason.ANSWERED, end.outcome,
        end.reward, 0, None, None, provenance=provenance,
    )  # fmt: skip
    error = _broken_off(run, end)
    if error is None:
        return run
    return replace(run, stop_reason=StopReason.FAULT, outcome=Outcome.INVALID, reward=None, error=error)


def _broken_off(run: Trajectory, end: End) -> str | None:
    if end.error is not None or not run.turns:
        return end.error or "empty: the run holds no action"
    return None if end.stop is not None or run.answer is not None else "cancelled: the run ends before an answer"


def mark_run(calls: Iterable[Written], response: str) -> list[Written]:
    """The calls of one message of which only the first was run and got `response`; the others are marked as not run."""
    first, *others = calls
    return [replace(first, response=response), *(replace(call, outcome=NOT_RUN) for call in others)]
