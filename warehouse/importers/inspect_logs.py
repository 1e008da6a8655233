"""Reader of Inspect AI's logs (`.eval` and `.json`), by the package `inspect-ai` itself: each sample is a run, with its scores.

A score of C, or full marks, is a success, and less a failure; marks beyond 1 keep their number and say no verdict. What Inspect left
unscored is invalid, and so is a sample that an error halted, that was invalidated, or that was cancelled before it was scored. A limit
that ended a sample is its stop reason, and its scores stand. The call of `submit` that ends a sample is the answer.

Kept in `provenance`: the sample with its messages, scores, metadata, store and usage. Lost: events, timelines, and what only they refer
to. A sample that cannot be read is quarantined with its place among the samples.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from warehouse.columns import to_json
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.importers.openai import ChatMessage, ToolCall, content_text, turns_of_messages
from warehouse.importers.runs import (
    ImportedRuns,
    MalformedRow,
    RunCollector,
    RunEnd,
    files_of,
    task_of,
    texts_of,
    trajectory_of,
    verdict_of,
)
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


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a scorer gave: a number, and the verdict where that is known."""

    verifier: str
    value: float | None = None
    verdict: Outcome | None = None
    error: str | None = None


def inspect_log_module() -> ModuleType:
    """The module `inspect_ai.log`. Raises RequestError where the package is not installed."""
    try:
        import inspect_ai.log as module
    except ImportError as error:
        raise RequestError("Inspect's logs need the package inspect-ai; install it with: pip install inspect-ai") from error
    return module


def read_inspect(path: Path) -> ImportedRuns:
    """Every sample of a log, or of the `.eval` and `.json` logs in a folder.

    Raises:
        RequestError: there is no such file, it is no log of Inspect, or the package `inspect-ai` is missing.
    """
    collector = RunCollector(FORMAT)
    module = inspect_log_module()
    for file in files_of(path, ".eval", ".json"):
        log, samples = _open(module, file)
        for place, (name, sample) in enumerate(samples, start=1):
            collector.rows += 1
            try:
                if isinstance(sample, Exception):
                    raise MalformedRow(f"the sample cannot be read: {type(sample).__name__}: {sample}")
                _read_sample(log, sample, file, place, collector)
            except (MalformedRow, UnicodeEncodeError) as error:
                collector.quarantine(file, place, str(error).encode(errors="replace").decode(), name)
    return collector.done()


def _open(module: ModuleType, path: Path) -> tuple[Any, Iterator[tuple[str, Any]]]:
    """A log and its samples with their names; one by one, with the error in place of a sample, where they cannot be read together."""
    try:
        log = module.read_eval_log(str(path), resolve_attachments=True)
        return log, ((f"{sample.id} epoch {sample.epoch}", sample) for sample in log.samples or [])
    except Exception as error:  # whatever a broken archive makes zip, JSON and validation raise
        try:
            return _open_broken(module, path)
        except Exception:  # as above, where the archive's directory or its header is broken too
            raise RequestError(f"{path} is no log of Inspect that can be read ({type(error).__name__}: {error}).") from error


def _open_broken(module: ModuleType, path: Path) -> tuple[Any, Iterator[tuple[str, Any]]]:
    if path.suffix == ".json":
        data = json.loads(path.read_bytes())
        samples = data.pop("samples", None) or []
        return module.EvalLog.model_validate(data), (
            (f"sample {n}", _or_error(_validated, module, one)) for n, one in enumerate(samples, 1)
        )
    with zipfile.ZipFile(path) as archive:
        names = [name for name in dict.fromkeys(archive.namelist()) if name.startswith("samples/") and name.endswith(".json")]
    log = module.read_eval_log(str(path), header_only=True)
    return log, ((name, _or_error(_sample_named, module, path, name)) for name in names)


def _or_error(read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except Exception as error:  # as above, and then of this sample alone
        return error


def _validated(module: ModuleType, sample: Any) -> Any:
    return module.resolve_sample_attachments(module.EvalSample.model_validate(sample), True)


def _sample_named(module: ModuleType, path: Path, name: str) -> Any:
    identity, _, epoch = name.removeprefix("samples/").removesuffix(".json").rpartition("_epoch_")
    return module.read_eval_log_sample(str(path), id=identity, epoch=int(epoch), resolve_attachments=True)


def _read_sample(log: Any, sample: Any, path: Path, place: int, collector: RunCollector) -> None:
    kept = sample.model_dump(mode="json", exclude=_LEFT_OUT, exclude_none=True)
    to_json(kept).encode()  # raises for halves of surrogate pairs, which no table holds
    messages = [_message(message, number) for number, message in enumerate(sample.messages) if not _is_prompt_example(message)]
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


def _scores(run: Trajectory, scored: list[_Scored]) -> list[Score]:
    """The scores whose verdict is known, unless the run itself is broken."""
    if run.stop_reason is StopReason.FAULT:
        return []
    return [Score(run.id, one.verifier, "released", one.value, one.verdict, one.error) for one in scored if one.verdict]


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _question(sample: Any) -> str:
    inputs = [sample.input] if isinstance(sample.input, str) else [m.text for m in sample.input if m.role == "user"]
    question = "\n\n".join(inputs)
    if not question.strip():
        raise MalformedRow("the sample asks nothing")
    return question


def _is_prompt_example(message: Any) -> bool:
    """Whether a message of the assistant or of a tool is part of the prompt."""
    return message.source == "input" and message.role in ("assistant", "tool")


def _message(message: Any, number: int) -> ChatMessage:
    parts = message.content if isinstance(message.content, str) else [part.model_dump() for part in message.content]
    if message.role == "tool":
        error = message.error
        text = content_text(parts, number) or (error.message if error else "")
        return ChatMessage("tool", text, answers=message.tool_call_id, tool=message.function, outcome=error.type if error else "ok")
    if message.role != "assistant":
        return ChatMessage(message.role, content_text(parts, number))
    thoughts = [] if isinstance(parts, str) else [part for part in parts if part["type"] == "reasoning"]
    texts = parts if isinstance(parts, str) else [part for part in parts if part["type"] != "reasoning"]
    calls = tuple(ToolCall(call.id, call.function, to_json(call.arguments)) for call in message.tool_calls or [])
    return ChatMessage("assistant", content_text(texts, number), content_text(thoughts, number), calls)


def _with_answer(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The turns, the last with its call of `submit` as the answer."""
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
    """The scores in their order, those of a dictionary one by one."""
    for name, score in (sample.scores or {}).items():
        values = {f"{name}/{key}": value for key, value in score.value.items()} if isinstance(score.value, dict) else {name: score.value}
        for verifier, value in values.items():
            yield _scored(verifier, _MARKS.get(value) if isinstance(value, str) else value, score)


def _scored(verifier: str, value: Any, score: Any) -> _Scored:
    if isinstance(value, float) and math.isnan(value):
        return _Scored(verifier, None, Outcome.INVALID, f"unscored: {score.reason or score.explanation or 'no reason given'}")
    number = float(value) if isinstance(value, bool | int | float) else None
    return _Scored(verifier, number, verdict_of(number))
