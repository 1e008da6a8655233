"""What the readers of foreign trajectories share: the pieces of a run, the record made of them, and the quarantine.

A run is kept whole: every call that stands in it is a turn, those that were written and never run as well, and what a format has
beyond a trajectory goes into `provenance`. A run that holds no action, or breaks off before its answer, is *invalid*: it says
nothing about the policy and is never a failure. A row that is not of the format is a `Failure` with its line and its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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

    def quarantine(self, path: Path, line: int, reason: str, text: str) -> None:
        """Set a row aside; `text` is its beginning."""
        item = {"file": path.name, "line": line, "text": text[:500]}
        self.failures.append(Failure("import", f"{self.format}_row", f"{path.name}, line {line}: {reason}", item))

    def done(self) -> ForeignRuns:
        """All of it."""
        return ForeignRuns(self.rows, tuple(self.records), tuple(self.failures))


def files_of(path: Path, suffix: str) -> list[Path]:
    """`path` itself, or the files with `suffix` in it where it is a folder. Raises RequestError where there is none."""
    files = sorted(path.glob(f"*{suffix}")) if path.is_dir() else [path] * path.is_file()
    if not files:
        raise RequestError(f"there is no file {path}{' with ' + suffix if path.is_dir() else ''}; name the file to import.")
    return files


def turns_of(calls: Sequence[Written]) -> tuple[Turn, ...]:
    """The turns of a run: no token ids and no times, for none were recorded."""
    return tuple(
        Turn(
            index, (), (), call.text, call.tool, call.arguments, (), call.response, None, call.outcome, None, 0,
            calls=() if call.tool is None else (Call(call.tool, call.arguments, call.outcome, call.response),),
        )
        for index, call in enumerate(calls)
    )  # fmt: skip


def trajectory_of(
    identifier: str, task: Task, policy: str, calls: Sequence[Written], outcome: Outcome | None, provenance: dict[str, Any]
) -> Trajectory:
    """The run as a trajectory; invalid, whatever `outcome` says, where it holds no action or was broken off."""
    run = Trajectory(
        identifier, task.key, policy, "import", 0, (), turns_of(calls), StopReason.ANSWERED, outcome,
        _reward(outcome), 0, None, None, provenance=provenance,
    )  # fmt: skip
    error = _broken_off(run)
    if error is None:
        return run
    return replace(run, stop_reason=StopReason.FAULT, outcome=Outcome.INVALID, reward=None, error=error)


def _broken_off(run: Trajectory) -> str | None:
    if not run.turns:
        return "empty: the run holds no action"
    return None if run.answer is not None else "cancelled: the run ends before an answer"


def _reward(outcome: Outcome | None) -> float | None:
    return None if outcome in (None, Outcome.INVALID) else float(outcome is Outcome.SUCCESS)


def mark_run(calls: Iterable[Written], response: str) -> list[Written]:
    """The calls of one message of which only the first was run and got `response`; the others are marked as not run."""
    first, *others = calls
    return [replace(first, response=response), *(replace(call, outcome=NOT_RUN) for call in others)]
