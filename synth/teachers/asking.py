"""Asking again where a reply cannot be read: each time under another seed, which makes it another request, and so often at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import TypeAdapter

from eval.judges import LEAST_TEMPERATURE
from synth.teachers.teacher import Fault, Teacher, read_json
from warehouse.digests import seed_from
from warehouse.records import Completion, Failure, Request
from warehouse.replies import form_of

T = TypeVar("T")

_MENDED = frozenset({Fault.CUT, Fault.EMPTY, Fault.COPIED})
"""Faults of a reply that another seed may mend; the others were tried often enough by the teacher, or are for good."""


def ask_readable(
    teacher: Teacher, requests: Sequence[Request], read: Callable[[int, Completion], T | Failure], tries: int = 2
) -> tuple[list[T | Failure], list[Failure]]:
    """What each request came to, in their order: what was read, or the failure of the last try; and the failures of the tries before.

    `read` is given the place of the request and its completion.
    """
    results: list[T | Failure] = [Failure("teacher", "not_asked", "nothing was asked")] * len(requests)
    before: list[Failure] = []
    open_ = list(range(len(requests)))
    for number in range(tries):
        if number:
            before += [result for place in open_ if isinstance(result := results[place], Failure)]
        replies = teacher.complete([_again(requests[place], number) for place in open_])
        for place, reply in zip(open_, replies, strict=True):
            results[place] = reply if isinstance(reply, Failure) else read(place, reply)
        open_ = [
            place
            for place, reply in zip(open_, replies, strict=True)
            if isinstance(results[place], Failure) and (not isinstance(reply, Failure) or reply.kind in _MENDED)
        ]
        if not open_:
            break
    return results, before


def ask_for(teacher: Teacher, requests: Sequence[Request], shape: TypeAdapter[T]) -> tuple[list[T | Failure], list[Failure]]:
    """The same of requests for JSON of that `shape`, whose form they name."""
    formed = [replace(request, form=form_of(shape)) for request in requests]
    return ask_readable(teacher, formed, lambda _, reply: read_json(reply, shape))


def _again(request: Request, number: int) -> Request:
    if not number:
        return request
    return replace(request, seed=seed_from("again", request.seed, number), temperature=max(request.temperature, LEAST_TEMPERATURE))
