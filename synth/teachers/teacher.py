"""The interface between synthesis and the models that write text for it: requests, replies, and how replies are read.

A teacher completes requests. A reply is a `Completion`, or a `Failure` that holds the model's text, in the order of the requests; never an
exception. An empty completion, one that was cut off at its token limit and one that copies the prompt's worked example are failures
(`judged`), but stored and counted as spent. A reply that a reader rejects returns to its writer with the reason (`ask_repaired`).

Worked examples in prompts are one exchange, as turns before the request. A small model copies what it is shown, so all examples speak of
the same invented names, and a reply that says one of them unasked is rejected.
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
"""The stage of a teacher's failures."""


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
"""Faults that do not depend on the request: it may succeed another time."""


class Ending(StrEnum):
    """A completion ends by itself, or at `max_tokens`."""

    STOP = "stop"
    LENGTH = "length"


Reply = Completion | Failure


class Teacher(Protocol):
    """Completes requests; safe to call from several threads."""

    @property
    def name(self) -> str:
        """Cache key of its completions: the kind of teacher and the model."""
        ...

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply to each request, in their order.

        Raises:
            RequestError: no request can succeed, for example because of a wrong key or an unknown model.
        """
        ...


def ask(teacher: Teacher, request: Request) -> Reply:
    """The reply to one request."""
    return teacher.complete([request])[0]


def judged(completion: Completion) -> Reply:
    """The completion, or a failure if it is empty, cut off, or copied."""
    if not completion.text.strip():
        return Failure(STAGE, Fault.EMPTY, "the completion is empty", _item(completion))
    if completion.ending == Ending.LENGTH:
        return Failure(STAGE, Fault.CUT, f"the completion was cut off after {completion.completion_tokens} tokens", _item(completion))
    if name := copied_name(completion):
        return Failure(STAGE, Fault.COPIED, f"the completion speaks of {name}, from the prompt's worked example", _item(completion))
    return completion


def failed(fault: Fault, reason: str, teacher: str, request: Request, text: str = "") -> Failure:
    """The failure of a request; `text` is what was received instead of a completion."""
    return Failure(STAGE, fault, reason, {"teacher": teacher, "request": request.digest, "text": text})


def completion_id(teacher: str, request: Request) -> str:
    """Id of a completion in the lake."""
    return digest([teacher, request.content])


def parted(results: Iterable[T | Failure]) -> tuple[list[T], list[Failure]]:
    """The results and the failures, each in their order."""
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
    """Answers questions from the graph; a request's last message is the question alone."""

    name = "oracle"

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> OracleTeacher:
        """The oracle that knows the answers of `tasks`."""
        return cls({task.question: right_answer(task) for task in tasks if task.answers})

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """The answer to each question, a list if it asks for a set; a failure for an unknown question."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        answer = self._answers.get(request.messages[-1].content.strip()) if request.messages else None
        if answer is None:
            return failed(Fault.UNKNOWN, "the graph has no such question", self.name, request)
        return Completion(completion_id(self.name, request), self.name, request.content, answer, Ending.STOP, 0, 0, attempts=0)


_DECODER = json.JSONDecoder()


def read_json(completion: Completion, shape: TypeAdapter[T]) -> T | Failure:
    """The first JSON value of this shape in the completion, or a failure."""
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


def json_values(reply: str) -> list[Any]:
    """Every top-level JSON object and list in a reply, without its reasoning."""
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
"""Faults that another seed may avoid; the teacher has retried the others, or they are permanent."""
REPAIRS = 2
"""How often a proposal that fails a check returns to its writer."""
REPAIR = "This reply was rejected: {reason}. Write another one in the same form, without this mistake."


def ask_repaired(
    teacher: Teacher, requests: Sequence[Request], read: Callable[[int, Completion], T | Failure]
) -> tuple[list[T | Failure], list[Failure]]:
    """For each request the value read or the failure of its last try; and the failures of earlier tries.

    A reply that `read` rejects returns to its writer with the reason, up to `REPAIRS` times. An empty, cut or copied one is sampled again
    under another seed. A `MeteredTeacher` counts values of the `first_try` and `repaired` ones; earlier failures say their `try`.

    Args:
        read: index of the request, completion -> value, or a failure whose reason says what to correct.
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
    """A check of `ask_for` that rejects nothing."""
    return value


def ask_for(
    teacher: Teacher, requests: Sequence[Request], shape: TypeAdapter[T], check: Callable[[int, T], V | Failure]
) -> tuple[list[V | Failure], list[Failure]]:
    """`ask_repaired` for JSON of this shape, the form of requests that have none; `check` gives the value or rejects it."""

    def read(place: int, reply: Completion) -> V | Failure:
        value = read_json(reply, shape)
        return value if isinstance(value, Failure) else check(place, value)

    return ask_repaired(teacher, [request if request.form else replace(request, form=form_of(shape)) for request in requests], read)


BLANK = "..."
"""Placeholder in forms; words there would be copied."""
INVENTED = ("Orla Vennick", "Tamsin Rookhope", "Larkmereth", "Glasheron", "Sootlantern")
"""Two people, a town and two works."""
_MARKS = ("orla ven", "tamsin roo", "larkmer", "glasher", "sootlan")
"""Beginnings that recognize each of them if misspelt."""
QUESTION = "In which town did the author of Sootlantern grow up?"
KNOWN = "- Sootlantern: author Orla Vennick\n- Orla Vennick: grew up in Larkmereth"
"""Facts that answer it."""


def copied_name(completion: Completion) -> str | None:
    """The first invented name that a completion says, possibly misspelt, and its last message does not.

    A JSON list of objects is copied if each of them is: its readers check them one by one.
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
    """Add `more` to `counts`, name by name."""
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number


def _note(teacher: Teacher, count: str) -> None:
    if isinstance(teacher, MeteredTeacher):
        teacher.note(count)


class MeteredTeacher:
    """Counts the requests to another teacher, thread-safe.

    A completion from the lake counts as it did the first time, so a resumed run reports the same counts; `Ledger` knows what was paid.
    """

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self._counts: dict[str, float] = {}
        self._lock = Lock()

    @property
    def name(self) -> str:
        """See `Teacher`."""
        return self.teacher.name

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """See `Teacher`."""
        replies = self.teacher.complete(requests)
        with self._lock:
            for reply in replies:
                add_counts(self._counts, _account(reply))
        return replies

    def note(self, count: str) -> None:
        """Add one to a count, and to that of a metered teacher within."""
        with self._lock:
            add_counts(self._counts, {count: 1})
        _note(self.teacher, count)

    def drain(self) -> dict[str, float]:
        """Counts since the last call: `asked`, `completed`, each fault, `tokens`, `seconds`, `first_try` and `repaired`."""
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
