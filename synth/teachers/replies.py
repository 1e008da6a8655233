"""Reading structured replies: the JSON in what a model wrote, checked against the shape that was asked for.

Models put their JSON into a code block, or a sentence before and after it. The first piece of the text that is JSON and has the
shape counts; nothing is repaired and nothing is guessed.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from synth.teachers.teacher import STAGE, Completion, Fault
from warehouse.records import Failure
from warehouse.settings import first_error

T = TypeVar("T")
_DECODER = json.JSONDecoder()


def read_json(completion: Completion, shape: TypeAdapter[T]) -> T | Failure:
    """The first JSON value in the completion that has `shape`, or a failure with the text."""
    reason = "the reply holds no JSON"
    for value in _values(completion.text):
        try:
            return shape.validate_python(value)
        except ValidationError as error:
            reason = first_error(error, "the reply")
    return Failure(STAGE, Fault.MALFORMED, reason, {"teacher": completion.teacher, "completion": completion.id, "text": completion.text})


def read_yes(completion: Completion) -> bool | None:
    """Whether the reply begins with yes or with no; None where with neither."""
    word = completion.text.strip().strip("*\"'").casefold()
    return True if word.startswith("yes") else False if word.startswith("no") and not word.startswith(("not ", "none")) else None


def _values(text: str) -> list[Any]:
    """Every JSON object and list in `text` that is not inside another."""
    values, place = [], 0
    while (found := min((p for p in (text.find("{", place), text.find("[", place)) if p >= 0), default=-1)) >= 0:
        try:
            value, place = _DECODER.raw_decode(text, found)
            values.append(value)
        except json.JSONDecodeError:
            place = found + 1
    return values
