"""The seam between synthesis and whatever writes text for it.

A teacher completes requests. What comes back is a `Completion` or a `Failure` with what the model said, never an exception and
never nothing, in the order of the requests. Which of the two a reply is, `judged` says: a reply that is empty or was cut off at its
token limit is stored and counted as spent, but nobody downstream has to look for half a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from warehouse.digests import digest
from warehouse.records import Completion, Failure
from warehouse.requests import Message, Request, user

__all__ = ["Completion", "Fault", "Message", "Reply", "Request", "Teacher", "ask", "failed", "judged", "user"]

STAGE = "teacher"
"""The stage of a teacher's failures."""


class Fault(StrEnum):
    """Why a request has no completion. Those up to `BUDGET` may pass, and the same request is asked again another time."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    MALFORMED = "malformed"
    BUDGET = "budget"
    REFUSED = "refused"
    EMPTY = "empty"
    CUT = "cut"
    UNKNOWN = "unknown"


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
    """The completion, or the failure that it is: empty, or cut off."""
    if not completion.text.strip():
        return Failure(STAGE, Fault.EMPTY, "the completion is empty", _item(completion))
    if completion.ending == Ending.LENGTH:
        return Failure(STAGE, Fault.CUT, f"the completion was cut off after {completion.completion_tokens} tokens", _item(completion))
    return completion


def failed(fault: Fault, reason: str, teacher: str, request: Request, text: str = "") -> Failure:
    """The failure of a request; `text` is what came instead of a completion."""
    return Failure(STAGE, fault, reason, {"teacher": teacher, "request": request.digest, "text": text})


def completion_id(teacher: str, request: Request) -> str:
    """The key of a completion in the lake: who was asked, and what."""
    return digest([teacher, request.content])


def _item(completion: Completion) -> dict[str, Any]:
    return {"teacher": completion.teacher, "completion": completion.id, "text": completion.text}
