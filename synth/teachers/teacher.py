"""The interface between synthesis and whatever writes text for it, the oracle that implements it without a model, and reading replies.

A teacher completes requests. What comes back is a `Completion` or a `Failure` with the model's text, never an exception and
never nothing, in the order of the requests. Which of the two a reply is, `judged` says: a reply that is empty, was cut off at its
token limit or copies the prompt's worked example is stored and counted as spent, but nobody downstream has to look for half a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from eval.graders.verifiers import right_answer
from synth.teachers.worked_examples import copied_name
from warehouse.digests import digest
from warehouse.records import Completion, Failure, Request, Task
from warehouse.replies import split_reasoning
from warehouse.settings import first_error

T = TypeVar("T")

STAGE = "teacher"
"""The stage of a teacher's failures."""


class Fault(StrEnum):
    """Why a request has no completion. Those up to `BUDGET` may pass (`PASSING`), and the same request is asked again another time."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    MALFORMED = "malformed"
    BUDGET = "budget"
    REFUSED = "refused"
    EMPTY = "empty"
    CUT = "cut"
    COPIED = "copied"
    UNKNOWN = "unknown"


PASSING = frozenset({Fault.TIMEOUT, Fault.CONNECTION, Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.MALFORMED, Fault.BUDGET})
"""Faults that say nothing of the request: another time it may have its completion."""


class Ending(StrEnum):
    """How a completion ended: by itself, or at `max_tokens`."""

    STOP = "stop"
    LENGTH = "length"


Reply = Completion | Failure
"""What comes back for one request."""


class Teacher(Protocol):
    """Completes requests; safe to call from several threads."""

    @property
    def name(self) -> str:
        """What the completions are filed under: the kind of teacher and the model, so that another model is another cache."""
        ...

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply to each request, in their order.

        Raises:
            RequestError: where no request whatever can succeed, such as a wrong key or an unknown model.
        """
        ...


def ask(teacher: Teacher, request: Request) -> Reply:
    """The reply to one request."""
    return teacher.complete([request])[0]


def judged(completion: Completion) -> Reply:
    """The completion, or the failure that it is: empty, cut off, or copied."""
    if not completion.text.strip():
        return Failure(STAGE, Fault.EMPTY, "the completion is empty", _item(completion))
    if completion.ending == Ending.LENGTH:
        return Failure(STAGE, Fault.CUT, f"the completion was cut off after {completion.completion_tokens} tokens", _item(completion))
    if name := copied_name(completion):
        return Failure(STAGE, Fault.COPIED, f"the completion speaks of {name}, from the prompt's worked example", _item(completion))
    return completion


def failed(fault: Fault, reason: str, teacher: str, request: Request, text: str = "") -> Failure:
    """The failure of a request; `text` is what came instead of a completion."""
    return Failure(STAGE, fault, reason, {"teacher": teacher, "request": request.digest, "text": text})


def completion_id(teacher: str, request: Request) -> str:
    """The key of a completion in the lake: who was asked, and what."""
    return digest([teacher, request.content])


def parted(results: Iterable[T | Failure]) -> tuple[list[T], list[Failure]]:
    """What came out well, and the failures, each in their order."""
    kept, failures = list[T](), list[Failure]()
    for result in results:
        if isinstance(result, Failure):
            failures.append(result)
        else:
            kept.append(result)
    return kept, failures


def _item(completion: Completion) -> dict[str, Any]:
    tokens = completion.prompt_tokens + completion.completion_tokens
    return {"teacher": completion.teacher, "completion": completion.id, "text": completion.text, "tokens": tokens}


class OracleTeacher:
    """Answers by question. A request is the question alone, as the last message."""

    name = "oracle"

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> OracleTeacher:
        """The oracle that knows the answers of `tasks`."""
        return cls({task.question: right_answer(task) for task in tasks if task.answers})

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """The answer to each question, the list of all where it asks for a set; a failure where the question is none of those."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        answer = self._answers.get(request.messages[-1].content.strip()) if request.messages else None
        if answer is None:
            return failed(Fault.UNKNOWN, "the graph has no such question", self.name, request)
        return Completion(completion_id(self.name, request), self.name, request.content, answer, Ending.STOP, 0, 0, attempts=0)


_DECODER = json.JSONDecoder()


def read_json(completion: Completion, shape: TypeAdapter[T]) -> T | Failure:
    """The first JSON value in the completion that has `shape`, or a failure with the text."""
    reason = "the reply holds no JSON"
    for value in json_values(completion.text):
        try:
            return shape.validate_python(value)
        except ValidationError as error:
            reason = first_error(error, "the reply")
    return malformed(completion, reason)


def malformed(completion: Completion, reason: str) -> Failure:
    """The failure of a completion that cannot be read."""
    return Failure(STAGE, Fault.MALFORMED, reason, _item(completion))


def read_yes(completion: Completion) -> bool | None:
    """Whether the reply begins with yes or with no; None where with neither."""
    word = split_reasoning(completion.text)[1].strip("*\"'").casefold()
    return True if word.startswith("yes") else False if word.startswith("no") and not word.startswith(("not ", "none")) else None


def json_values(reply: str) -> list[Any]:
    """Every JSON object and list in a reply that is not inside another; what the model thought before it speaks is passed over."""
    text = split_reasoning(reply)[1]
    values, place = [], 0
    while (found := min((p for p in (text.find("{", place), text.find("[", place)) if p >= 0), default=-1)) >= 0:
        try:
            value, place = _DECODER.raw_decode(text, found)
            values.append(value)
        except (json.JSONDecodeError, RecursionError):
            place = found + 1
    return values
