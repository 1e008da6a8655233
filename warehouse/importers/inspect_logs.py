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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

from warehouse.bounds import Archive, read_json, why_too_large
from warehouse.columns import to_json
from warehouse.digests import digest
from warehouse.errors import RequestError
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
_EVENTS = {"events", "events_data", "timelines"}
_LEFT_OUT = {*_EVENTS, "attachments"}
_FRAME = ("version", "status", "eval", "plan")
"""The parts of a log in one object that a sample cannot be read without."""

Named = tuple[str, Callable[[], Any]]
"""A sample's name and what reads it."""


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
    """Every sample of a log, or of the `.eval` and `.json` logs in a folder, of which one that cannot be read is set aside.

    Raises:
        RequestError: there is no such file, it is no log of Inspect or too large a one, or the package `inspect-ai` is missing.
    """
    module = inspect_log_module()
    return read_files(FORMAT, path, (".eval", ".json"), lambda file, collector: _read_file(module, file, collector))


def _read_file(module: ModuleType, path: Path, collector: RunCollector) -> None:
    with ExitStack() as held:
        try:
            log, samples = (_open_archive if zipfile.is_zipfile(path) else _open_json)(module, path, held)
        except RequestError:
            raise
        except Exception as error:  # whatever a broken archive or header makes zip, JSON and validation raise
            raise RequestError(f"{path} is no log of Inspect that can be read ({type(error).__name__}: {error}).") from error
        for place, (name, read) in enumerate(samples, start=1):
            collector.rows += 1
            try:
                _read_sample(log, _sample(read), path, place, collector)
            except (MalformedRow, UnicodeEncodeError) as error:
                collector.quarantine(path, place, str(error).encode(errors="replace").decode(), name)


def _sample(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # as above, and then of this sample alone
        raise MalformedRow(f"the sample cannot be read: {type(error).__name__}: {error}") from error


def _open_archive(module: ModuleType, path: Path, held: ExitStack) -> tuple[Any, Iterator[Named]]:
    """A log and its samples one by one: each is given to Inspect in an archive of its own, made of what was read within bounds."""
    archive = held.enter_context(closing(Archive(path)))
    frame = {name: archive.read(name) for name in archive.names if _is_frame(name)}

    def read(name: str) -> Any:
        (sample,) = _from_archive(module, {**frame, name: _without_events(read_json(archive.read(name)))}).samples
        return sample

    names = (name for name in archive.names if name.startswith("samples/") and name.endswith(".json"))
    return _from_archive(module, frame), ((name, partial(read, name)) for name in names)


def _is_frame(name: str) -> bool:
    """Whether a member says what was evaluated: the header, or what stands in its place until a log is finished."""
    return name == "header.json" or (name.startswith("_journal/") and not name.startswith("_journal/summaries/"))


def _from_archive(module: ModuleType, members: Mapping[str, bytes]) -> Any:
    plain = BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return module.read_eval_log(plain, resolve_attachments=True, format="eval")


def _open_json(module: ModuleType, path: Path, held: ExitStack) -> tuple[Any, Iterator[Named]]:
    """As `_open_archive`, of a log in one object."""
    data = read_json(path.read_bytes())
    samples = data.pop("samples", None) or []
    frame = {name: data[name] for name in _FRAME if name in data}

    def read(sample: Any) -> Any:
        whole = b'{"samples": [' + _without_events(sample) + b"], " + json.dumps(frame).encode()[1:]
        (read,) = module.read_eval_log(BytesIO(whole), resolve_attachments=True, format="json").samples
        return read

    log = module.read_eval_log(BytesIO(json.dumps(data).encode()), format="json")
    return log, ((f"sample {place}", partial(read, sample)) for place, sample in enumerate(samples, start=1))


def _without_events(sample: Any) -> bytes:
    """A sample as JSON without what is not kept of it and is most of it."""
    return json.dumps({name: value for name, value in sample.items() if name not in _EVENTS}).encode()


def _read_sample(log: Any, sample: Any, path: Path, place: int, collector: RunCollector) -> None:
    kept = sample.model_dump(mode="json", exclude=_LEFT_OUT, exclude_none=True)
    if fault := why_too_large(kept):  # an attachment stands once in a log, and here wherever it is named
        raise MalformedRow(fault)
    to_json(kept).encode()  # raises for halves of surrogate pairs, which no table holds
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


def _chat(messages: Iterable[Any]) -> list[ChatMessage]:
    """Inspect's messages in the form that importers share."""
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
