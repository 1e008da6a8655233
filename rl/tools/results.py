"""What comes of a call: a result in the bounded form in which it leaves the tool's process, or one of the errors that a call may raise.

A tool may return text, anything that JSON can hold, content parts, or a `ToolResult` that adds a reward for the turn and figures.
`to_response` makes an observation of it there and then: a result of 100 MB is cut before it travels, and text that is no Unicode
(half of a surrogate pair) is mended, for no tokenizer would take it. The policy is shown a `ToolError` or a `ToolMiss`; a `ToolFault`
ends the trajectory.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from rl.content import ContentPart, ImageFault, ImagePart, TextPart, check_count, decode_image, mended, text_of
from rl.tools.config import CallLimits

CUT_MARK = " ..."


class ToolError(Exception):
    """The call was wrong; the text says how, to the policy."""


class ToolMiss(Exception):
    """The call was right and there is nothing to give; the text says so, to the policy."""


class ToolFault(Exception):
    """The tool failed, took too long or broke its word; the text names it. It says nothing about the policy."""


class ToolTimeout(ToolFault, TimeoutError):
    """The tool took too long."""


class ToolImageFault(ToolFault, ImageFault):
    """The tool gave an image that cannot be decoded, or one of too many pixels."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A result with more to say than its content: give at most one of `text`, `json` and `parts`.

    `reward` is the tool's own for this turn. `figures` are numbers that are recorded with the call and that the policy never sees.

    Raises:
        ValueError: where it holds several contents, or a reward or figure that is no finite number.
    """

    text: str | None = None
    json: Any = None
    parts: tuple[ContentPart, ...] = ()
    reward: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.text is not None) + (self.json is not None) + bool(self.parts) > 1:
            raise ValueError("a ToolResult holds text, json or parts: one of them")
        numbers = [*self.figures.values(), *([] if self.reward is None else [self.reward])]
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ValueError("the reward and the figures of a ToolResult are finite numbers")


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """A result as the policy will see it: bounded, and of plain types that another process can take. `cut` counts the characters left out.

    `cut` is a lower bound for JSON, which is encoded no further than it is shown.
    """

    text: str
    parts: tuple[ContentPart, ...] = ()
    reward: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    cut: int = 0


def to_response(value: Any, limits: CallLimits) -> ToolResponse:
    """The bounded form of what a tool returned.

    Raises:
        TypeError, ValueError: where it is nothing that can be shown.
        ToolImageFault: where an image in it cannot be decoded, or is too large.
    """
    result = value if isinstance(value, ToolResult) else _as_result(value)
    if result.parts:
        parts, cut = _bounded(result.parts, limits)
        return ToolResponse(text_of(parts), parts, result.reward, dict(result.figures), cut)
    text = _to_json(result.json, limits.max_characters + 1) if result.text is None and result.json is not None else result.text or ""
    if not isinstance(text, str):
        raise TypeError(f"the text of a ToolResult is a {type(text).__name__}")
    text, cut = cut_off(text, limits.max_characters)
    return ToolResponse(text, (), result.reward, dict(result.figures), cut)


def _as_result(value: Any) -> ToolResult:
    """What a tool returned, as a `ToolResult`."""
    if isinstance(value, str):
        return ToolResult(text=value)
    if isinstance(value, TextPart | ImagePart):
        return ToolResult(parts=(value,))
    if isinstance(value, list | tuple) and value and all(isinstance(part, TextPart | ImagePart) for part in value):
        return ToolResult(parts=tuple(value))
    return ToolResult(json=value)


def _to_json(value: Any, characters: int) -> str:
    """JSON of a value, encoded no further than `characters`."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False, default=_jsonable).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size >= characters:
            break
    return "".join(pieces)


def _jsonable(value: Any) -> Any:
    """What JSON can hold in the place of a value of a known kind; whatever else there is may be endless, and is refused."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, date | time | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a result of type {type(value).__name__} is neither text nor JSON nor content parts")


def cut_off(text: str, characters: int) -> tuple[str, int]:
    """At most `characters` of a text, and the number of characters left out."""
    left_out = max(0, len(text) - characters)
    kept = text[: max(0, characters - len(CUT_MARK))] + CUT_MARK if left_out else text
    return mended(kept), left_out


def _bounded(parts: Sequence[ContentPart], limits: CallLimits) -> tuple[tuple[ContentPart, ...], int]:
    """Parts whose texts together, and whose images together, are within the limits, and the number of characters left out."""
    kept: list[ContentPart] = []
    room, cut = limits.max_characters, 0
    _check_images([part for part in parts if isinstance(part, ImagePart)], limits)
    for part in parts:
        if isinstance(part, ImagePart):
            kept.append(part)
            continue
        text, left_out = cut_off(part.text, room)
        cut += left_out
        room -= min(room, len(part.text))
        if text:
            kept.append(TextPart(text))
    return tuple(kept), cut


def _check_images(images: Sequence[ImagePart], limits: CallLimits) -> None:
    """Raises `ToolImageFault` for images of too many bytes, too many images, and those that cannot be decoded."""
    try:
        if sum(len(image.data) for image in images) > limits.max_image_bytes:
            raise ImageFault("the images of the result are larger than max_image_bytes")
        check_count(len(images))
        for image in images:
            decode_image(image.data, image.media_type)
    except ImageFault as fault:
        raise ToolImageFault(str(fault)) from fault
