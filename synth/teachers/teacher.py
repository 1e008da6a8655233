"""Interface between synthesis and its teacher models: requests, replies, and parsing of replies.

A teacher completes requests in order. Each reply is a `Completion` or a `Failure` with the model's text. Completions that are empty,
truncated at their token limit, or copied from the prompt's worked example are failures (`judged`), but are stored and counted as spent. A
reply rejected by its parser is returned to the teacher with the reason (`ask_repaired`).

Worked examples are one exchange, as turns before the request. Small models copy what they are shown, so all examples use the same invented
names, and a reply that contains one of them unasked is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from threading import Lock
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from eval.graders.verifiers import right_answer
from eval.judges import LEAST_TEMPERATURE
from warehouse.digests import digest, seed_from
from warehouse.records import Completion, Failure, Message, Request, Task
from warehouse.replies import form_of, split_reasoning
from warehouse.settings import first_error

T = TypeVar("T")
V = TypeVar("V")

STAGE = "teacher"


class Fault(StrEnum):
    """Why a request has no completion."""

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
"""Faults independent of the request, which may succeed later."""


class Ending(StrEnum):
    """How a completion ended: by itself (STOP) or at `max_tokens` (LENGTH)."""

    STOP = "stop"
    LENGTH = "length"


Reply = Completion | Failure


class Teacher(Protocol):
    """Completes requests; thread-safe."""

    @property
    def name(self) -> str:
        """Name of teacher kind and model; part of the cache key of completions."""
        ...

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order.

        Raises:
            RequestError: no request can succeed, for example because of a wrong key or an unknown model.
        """
        ...


def ask(teacher: Teacher, request: Request) -> Reply:
    """Complete one request."""
    return teacher.complete([request])[0]


def judged(completion: Completion) -> Reply:
    if not completion.text.strip():
        return Failure(STAGE, Fault.EMPTY, "the completion is empty", _item(completion))
    if completion.ending == Ending.LENGTH:
        return Failure(STAGE, Fault.CUT, f"the completion was cut off after {completion.completion_tokens} tokens", _item(completion))
    if name := copied_name(completion):
        return Failure(STAGE, Fault.COPIED, f"the completion speaks of {name}, from the prompt's worked example", _item(completion))
    return completion


def failed(fault: Fault, reason: str, teacher: str, request: Request, text: str = "") -> Failure:
    """Failure of a request; `text` is what was received instead of a completion."""
    return Failure(STAGE, fault, reason, {"teacher": teacher, "request": request.digest, "text": text})


def completion_id(teacher: str, request: Request) -> str:
    """Id of a completion in the lake."""
    return digest([teacher, request.content])


def parted(results: Iterable[T | Failure]) -> tuple[list[T], list[Failure]]:
    """Split into results and failures, each in order."""
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
    """Answers questions from the graph; the last message of a request must be the question alone."""

    name = "oracle"

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> OracleTeacher:
        return cls({task.question: right_answer(task) for task in tasks if task.answers})

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer per question, a list if it asks for a set; a failure for an unknown question."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        answer = self._answers.get(request.messages[-1].content.strip()) if request.messages else None
        if answer is None:
            return failed(Fault.UNKNOWN, "the graph has no such question", self.name, request)
        return Completion(completion_id(self.name, request), self.name, request.content, answer, Ending.STOP, 0, 0, attempts=0)


_DECODER = json.JSONDecoder()


def read_json(completion: Completion, shape: TypeAdapter[T]) -> T | Failure:
    """First JSON value of this shape in the completion, or a failure."""
    reason = "the reply holds no JSON"
    for value in json_values(completion.text):
        try:
            return shape.validate_python(value)
        except ValidationError as error:
            reason = first_error(error, "the reply")
    return malformed(completion, reason)


def malformed(completion: Completion, reason: str) -> Failure:
    return Failure(STAGE, Fault.MALFORMED, reason, _item(completion))


def json_values(reply: str) -> list[Any]:
    """All top-level JSON objects and lists in a reply, without its reasoning."""
    text = split_reasoning(reply)[1]
    values, place = [], 0
    while (found := min((p for p in (text.find("{", place), text.find("[", place)) if p >= 0), default=-1)) >= 0:
        try:
            value, place = _DECODER.raw_decode(text, found)
            values.append(value)
        except (json.JSONDecodeError, RecursionError):
            place = found + 1
    return values


_RESAMPLED = frozenset({Fault.CUT, Fault.EMPTY, Fault.COPIED})
"""Faults that another seed may avoid; others were retried by the teacher or are permanent."""
REPAIRS = 2
"""Maximum repairs of a rejected reply."""
REPAIR = "This reply was rejected: {reason}. Write another one in the same form, without this mistake."


def ask_repaired(
    teacher: Teacher, requests: Sequence[Request], read: Callable[[int, Completion], T | Failure]
) -> tuple[list[T | Failure], list[Failure]]:
    """Complete requests and parse the replies, with repairs.

    A reply that `read` rejects is returned to the teacher with the reason, up to `REPAIRS` times; an empty, truncated or copied one is
    sampled again with another seed. A `MeteredTeacher` counts accepted values as `first_try` or `repaired`.

    Args:
        read: maps request index and completion to a value, or to a failure whose reason says what to correct.

    Returns:
        Per request the value or the failure of its last try; and the failures of earlier tries, with their number under `try`.
    """
    results: list[T | Failure] = [Failure(STAGE, "not_asked", "nothing was asked")] * len(requests)
    before: list[Failure] = []
    open_, asking = list(range(len(requests))), list(requests)
    for number in range(REPAIRS + 1):
        replies = teacher.complete(asking)
        following: list[tuple[int, Request]] = []
        for place, request, reply in zip(open_, asking, replies, strict=True):
            result = results[place] = reply if isinstance(reply, Failure) else read(place, reply)
            if not isinstance(result, Failure):
                _note(teacher, "repaired" if number else "first_try")
            elif number < REPAIRS and (not isinstance(reply, Failure) or reply.kind in _RESAMPLED):
                before.append(replace(result, item={**result.item, "try": number + 1}) if isinstance(result.item, dict) else result)
                following.append((place, _next(requests[place], request, reply, result, number + 1)))
        if not following:
            break
        open_, asking = [place for place, _ in following], [request for _, request in following]
    return results, before


def _next(first: Request, request: Request, reply: Reply, result: Failure, number: int) -> Request:
    seed, temperature = seed_from("again", first.seed, number), max(first.temperature, LEAST_TEMPERATURE)
    if isinstance(reply, Failure):
        return replace(request, seed=seed, temperature=temperature)
    repair = (Message("assistant", reply.text), Message("user", REPAIR.format(reason=result.reason.rstrip("."))))
    return replace(first, messages=(*first.messages, *repair), seed=seed, temperature=temperature)


def as_read(_: int, value: T) -> T:
    return value


def ask_for(
    teacher: Teacher, requests: Sequence[Request], shape: TypeAdapter[T], check: Callable[[int, T], V | Failure]
) -> tuple[list[V | Failure], list[Failure]]:
    """`ask_repaired` for JSON of this shape, which is also the form of requests without one; `check` returns the value or rejects it."""

    def read(place: int, reply: Completion) -> V | Failure:
        value = read_json(reply, shape)
        return value if isinstance(value, Failure) else check(place, value)

    return ask_repaired(teacher, [request if request.form else replace(request, form=form_of(shape)) for request in requests], read)


BLANK = "..."
"""Placeholder in forms; words would be copied."""
INVENTED = ("Orla Vennick", "Tamsin Rookhope", "Larkmereth", "Glasheron", "Sootlantern")
"""Two people, a town and two works."""
_MARKS = ("orla ven", "tamsin roo", "larkmer", "glasher", "sootlan")
"""Prefixes that recognise misspelt names."""
QUESTION = "In which town did the author of Sootlantern grow up?"
KNOWN = "- Sootlantern: author Orla Vennick\n- Orla Vennick: grew up in Larkmereth"
"""Facts that answer `QUESTION`."""


def copied_name(completion: Completion) -> str | None:
    """First invented name in a completion, possibly misspelt, that its last message does not contain; None if there is none.

    A JSON list of objects counts as copied only if every object contains one, since readers check objects one by one.
    """
    asked = str(completion.request["messages"][-1]["content"]).casefold()
    if not _invented_name(completion.text.casefold(), asked):
        return None
    listed = (value for value in json_values(completion.text) if isinstance(value, list) and all(isinstance(item, dict) for item in value))
    items = next(listed, []) or [completion.text]
    named = [_invented_name(str(item).casefold(), asked) for item in items]
    return named[0] if all(named) else None


def _invented_name(said: str, asked: str) -> str | None:
    return next((name for name, mark in zip(INVENTED, _MARKS, strict=True) if mark in said and mark not in asked), None)


def add_counts(counts: dict[str, float], more: Mapping[str, float]) -> None:
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number


def _note(teacher: Teacher, count: str) -> None:
    if isinstance(teacher, MeteredTeacher):
        teacher.note(count)


class MeteredTeacher:
    """Counts the requests to another teacher; thread-safe.

    A cached completion counts like a new one, so a resumed run reports the same counts; see `Ledger` for actual costs.
    """

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self._counts: dict[str, float] = {}
        self._lock = Lock()

    @property
    def name(self) -> str:
        return self.teacher.name

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        replies = self.teacher.complete(requests)
        with self._lock:
            for reply in replies:
                add_counts(self._counts, _account(reply))
        return replies

    def note(self, count: str) -> None:
        """Increment a count, here and in a wrapped `MeteredTeacher`."""
        with self._lock:
            add_counts(self._counts, {count: 1})
        _note(self.teacher, count)

    def drain(self) -> dict[str, float]:
        """Return and clear the counts: `asked`, `completed`, each fault, `tokens`, `seconds`, `first_try` and `repaired`."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


def unmetered(teacher: Teacher) -> Teacher:
    """The teacher itself, without the meters around it."""
    while isinstance(teacher, MeteredTeacher):
        teacher = teacher.teacher
    return teacher


def _account(reply: Reply) -> dict[str, float]:
    if isinstance(reply, Completion):
        tokens = reply.prompt_tokens + reply.completion_tokens
        return {"asked": 1, "completed": 1, "tokens": tokens, "seconds": reply.seconds}
    return {"asked": 1, str(reply.kind): 1, "tokens": reply.item.get("tokens", 0) if isinstance(reply.item, dict) else 0}
