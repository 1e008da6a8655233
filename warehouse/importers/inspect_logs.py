"""Reader of Inspect AI logs (`.eval` and `.json`) with the package `inspect-ai`; each sample is a run with its scores.

A score of C, or 1, is a success, a lower one a failure; scores above 1 keep their value without a verdict. Unscored samples are invalid,
and so are samples that ended in an error, were invalidated, or were cancelled before scoring. A limit that ended a sample is its stop
reason, and its scores count. A final call of `submit` is the answer.

Kept in `provenance`: the sample with messages, scores, metadata, store and usage. Lost: events, timelines, and what only they reference.
Unreadable samples are quarantined with their position.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

from warehouse.columns import to_json
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.foreign import Row, read_foreign
from warehouse.foreign_text import MIB, MOST_ROW_BYTES
from warehouse.importers.conversation import ChatMessage, turns_of_messages
from warehouse.importers.messages import read_messages
from warehouse.importers.runs import (
    ImportedRuns,
    MalformedRow,
    RunCollector,
    RunEnd,
    read_files,
    task_of,
    texts_of,
    trajectory_of,
    verdict_of,
)
from warehouse.json_text import MOST_DEPTH, TOO_DEEP, inner_values
from warehouse.records import ANSWER, Call, Outcome, Score, StopReason, Trajectory, Turn

FORMAT = "inspect"
_MARKS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_LIMITS = {
    "context": StopReason.MAX_CONTEXT_TOKENS,
    "token": StopReason.MAX_CONTEXT_TOKENS,
    "message": StopReason.MAX_TURNS,
    "turn": StopReason.MAX_TURNS,
    "time": StopReason.MAX_SECONDS,
    "working": StopReason.MAX_SECONDS,
}
_LEFT_OUT = {"events", "events_data", "timelines", "attachments"}
_FRAME = ("version", "status", "eval", "plan")
"""Parts of a single-object log required to read a sample."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """Result of a scorer: a value, and the verdict if known."""

    verifier: str
    value: float | None = None
    verdict: Outcome | None = None
    error: str | None = None


def inspect_log_module() -> ModuleType:
    """Import `inspect_ai.log`. Raises RequestError if the package is not installed."""
    try:
        import inspect_ai.log as module
    except ImportError as error:
        raise RequestError("Inspect's logs need the package inspect-ai; install it with: pip install inspect-ai") from error
    return module


def read_inspect(path: Path) -> ImportedRuns:
    """Read the samples of a log, or of the `.eval` and `.json` logs in a folder; unreadable logs in a folder are quarantined.

    Raises:
        RequestError: the file is missing, no Inspect log or too large, or the package `inspect-ai` is missing.
    """
    module = inspect_log_module()
    return read_files(FORMAT, path, (".eval", ".json"), lambda file, collector: _read_file(module, file, collector))


def _read_file(module: ModuleType, path: Path, collector: RunCollector) -> None:
    head, samples = read_foreign("inspect", path)
    frame = {name: str(content).encode() for name, content in head["members"].items()}
    try:
        log = _parse(module, head["format"], frame)
        if head["format"] == "json":
            data = json.loads(frame[""])
            frame = {"": json.dumps({name: data[name] for name in _FRAME if name in data}).encode()}
    except Exception as error:  # Inspect's validation may raise anything
        raise RequestError(f"{path} is not a readable Inspect log ({type(error).__name__}: {error}).") from error
    for row in samples:
        collector.rows += 1
        try:
            _read_sample(log, _sample(module, head["format"], frame, row), path, row.line, collector)
        except (MalformedRow, UnicodeEncodeError) as error:
            collector.quarantine(path, row.line, str(error).encode(errors="replace").decode(), row.text)


def _sample(module: ModuleType, form: str, frame: Mapping[str, bytes], row: Row) -> Any:
    """Parse one sample in a log of its own."""
    if row.fault is not None:
        raise MalformedRow(row.fault)
    content = str(row.value).encode()
    members = {**frame, row.text: content} if form == "eval" else {"": b'{"samples": [' + content + b"], " + frame[""][1:]}
    try:
        (sample,) = _parse(module, form, members).samples
    except Exception as error:  # as above; only this sample fails
        raise MalformedRow(f"the sample cannot be read: {type(error).__name__}: {error}") from error
    return sample


def _parse(module: ModuleType, form: str, members: Mapping[str, bytes]) -> Any:
    """Parse a log from the members of an archive, or from one JSON object under the name ""."""
    if form == "json":
        return module.read_eval_log(BytesIO(members[""]), resolve_attachments=True, format="json")
    plain = BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return module.read_eval_log(plain, resolve_attachments=True, format="eval")


def _read_sample(log: Any, sample: Any, path: Path, place: int, collector: RunCollector) -> None:
    kept = sample.model_dump(mode="json", exclude=_LEFT_OUT, exclude_none=True)
    if fault := _why_too_large(kept):  # attachments are stored once in a log, but expanded at each reference
        raise MalformedRow(fault)
    to_json(kept).encode()  # raises for lone surrogates
    messages = _chat(message for message in sample.messages if not _is_prompt_example(message))
    task = task_of(FORMAT, _question(sample), texts_of(sample.target))
    scored = list(_scored_values(sample))
    head = scored[0] if scored else _Scored("")
    identifier = f"{FORMAT}-{digest([log.eval.eval_id, str(sample.id), sample.epoch])}"
    about = {"task": log.eval.task, "eval_id": log.eval.eval_id, "run_id": log.eval.run_id, "created": log.eval.created}
    provenance = {"file": path.name, "line": place, "eval": about, "sample": kept}
    end = RunEnd(head.verdict, head.value, _stop(sample, bool(scored)), _error(sample))
    run = trajectory_of(identifier, task, log.eval.model, _with_answer(turns_of_messages(messages)), end, provenance)
    run = replace(run, sample=sample.epoch - 1, started=_time(sample.started_at), seconds=sample.total_time)
    collector.records += [task, run, *_scores(run, scored)]


def _why_too_large(value: Any) -> str | None:
    """Reason why a value with many repeated texts would be too large or deep as JSON, or None."""
    level, letters = [value], 0
    for _ in range(MOST_DEPTH + 1):
        inside = list(inner_values(level))
        letters += sum(len(one) for one in inside if isinstance(one, str))
        if letters > MOST_ROW_BYTES:
            return f"it has more than {MOST_ROW_BYTES // MIB} MiB of text"
        level = [inner for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return None
    return TOO_DEEP


def _scores(run: Trajectory, scored: list[_Scored]) -> list[Score]:
    """Scores with a known verdict, unless the run is broken."""
    if run.stop_reason is StopReason.FAULT:
        return []
    return [Score(run.id, one.verifier, "released", one.value, one.verdict, one.error) for one in scored if one.verdict]


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _question(sample: Any) -> str:
    inputs = [sample.input] if isinstance(sample.input, str) else [m.text for m in sample.input if m.role == "user"]
    question = "\n\n".join(inputs)
    if not question.strip():
        raise MalformedRow("the sample has no question")
    return question


def _is_prompt_example(message: Any) -> bool:
    return message.source == "input" and message.role in ("assistant", "tool")


def _chat(messages: Iterable[Any]) -> list[ChatMessage]:
    return read_messages([_plain(message) for message in messages])


def _plain(message: Any) -> dict[str, Any]:
    parts = message.content if isinstance(message.content, str) else [part.model_dump(exclude_none=True) for part in message.content]
    plain: dict[str, Any] = {"role": message.role, "content": parts}
    if message.role == "assistant":
        plain["tool_calls"] = [{"id": call.id, "name": call.function, "arguments": call.arguments} for call in message.tool_calls or []]
    elif message.role == "tool":
        plain |= {"tool_call_id": message.tool_call_id, "name": message.function}
        if message.error:
            plain |= {"content": parts or message.error.message, "outcome": message.error.type}
    return plain


def _with_answer(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The turns, with a final call of `submit` converted to the answer."""
    if not turns or not turns[-1].calls or turns[-1].calls[-1].tool != "submit":
        return turns
    submitted = turns[-1].calls[-1]
    given = json.loads(submitted.arguments or "{}")
    answer = Call(ANSWER, str(given.get("answer", submitted.arguments)), None)
    first = (*turns[-1].calls[:-1], answer)[0]
    last = replace(turns[-1], calls=(*turns[-1].calls[:-1], answer), tool=first.tool, arguments=first.arguments, tool_outcome=first.outcome)
    return (*turns[:-1], last)


def _stop(sample: Any, scored: bool) -> StopReason | None:
    if sample.limit is not None:
        return _LIMITS.get(sample.limit.type, StopReason.LEFT)
    return StopReason.ANSWERED if scored else None


def _error(sample: Any) -> str | None:
    if sample.invalidation is not None:
        return "invalidated"
    return None if sample.error is None else f"broken: {sample.error.message}"


def _scored_values(sample: Any) -> Iterator[_Scored]:
    """All scores in order; dictionary scores are split by key."""
    for name, score in (sample.scores or {}).items():
        values = {f"{name}/{key}": value for key, value in score.value.items()} if isinstance(score.value, dict) else {name: score.value}
        for verifier, value in values.items():
            yield _scored(verifier, _MARKS.get(value) if isinstance(value, str) else value, score)


def _scored(verifier: str, value: Any, score: Any) -> _Scored:
    if isinstance(value, float) and math.isnan(value):
        return _Scored(verifier, None, Outcome.INVALID, f"unscored: {score.reason or score.explanation or 'no reason given'}")
    number = float(value) if isinstance(value, bool | int | float) else None
    return _Scored(verifier, number, verdict_of(number))
