"""Interface of tools, and results and errors of their calls.

A tool has a name and a schema of arguments; it is opened for a trajectory and then called. It may return text, any JSON value, content
parts, or a `ToolResult` that adds a reward for the turn and figures. `to_response` bounds the result in the tool's own process, so that a
result of 100 MB is cut before it is sent, and replaces unpaired surrogates, which tokenizers reject.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time
from enum import Enum
from typing import Annotated, Any, Protocol
from uuid import UUID

from pydantic import BaseModel

from rl.call_arguments import as_object
from rl.content import ContentPart, ImageFault, ImagePart, TextPart, check_count, decode_image, mended, text_of
from rl.tools.config import CallLimits, CallRules
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Task

CUT_MARK = " ..."
NO_TASK = Task("", "tools", "", ())
"""The task of a tool that is called outside a trajectory: by its probe, or by hand."""


class ToolError(Exception):
    """The call was wrong; the policy sees the text."""


class ToolMiss(Exception):
    """The call was right but there is nothing to return; the policy sees the text."""


class ToolFault(Exception):
    """The tool failed, took too long or broke its contract; not the policy's fault."""


class ToolTimeout(ToolFault, TimeoutError): ...


class ToolImageFault(ToolFault, ImageFault):
    """The tool returned an image that cannot be decoded or is too large."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A result with more than its content; give at most one of `text`, `json` and `parts`.

    `reward` is the tool's own reward for this turn. `figures` are numbers recorded with the call that the policy does not see.

    Raises:
        ValueError: several contents are given, or a reward or figure is not a finite number.
    """

    text: str | None = None
    json: Any = None
    parts: tuple[ContentPart, ...] = ()
    reward: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.text is not None) + (self.json is not None) + bool(self.parts) > 1:
            raise ValueError("a ToolResult must have only one of text, json and parts")
        numbers = [*self.figures.values(), *([] if self.reward is None else [self.reward])]
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ValueError("the reward and the figures of a ToolResult must be finite numbers")


Rewarded = Annotated[tuple[Any, float] | tuple[Any, float, dict[str, float]], "rewarded"]
"""Return annotation of a tool that returns `(response, reward)` or `(response, reward, figures)`; without it, a tuple is JSON."""


def as_rewarded(value: tuple[Any, ...]) -> ToolResult:
    """The result that a tool annotated with `Rewarded` returned. Raises ValueError as `ToolResult` does."""
    response, reward, *figures = value
    return replace(_as_result(response), reward=reward, figures=figures[0] if figures else {})


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """A result as the policy will see it: bounded, and of plain types.

    `cut` is the number of characters left out; for JSON, which is encoded no further than shown, a lower bound.
    """

    text: str
    parts: tuple[ContentPart, ...] = ()
    reward: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    cut: int = 0


def to_response(value: Any, limits: CallLimits) -> ToolResponse:
    """Bound what a tool returned.

    Raises:
        TypeError, ValueError: it cannot be shown.
        ToolImageFault: an image cannot be decoded or is too large.
    """
    result = value if isinstance(value, ToolResult) else _as_result(value)
    if result.parts:
        parts, cut = _bounded(result.parts, limits)
        return ToolResponse(text_of(parts), parts, result.reward, dict(result.figures), cut)
    text = _to_json(result.json, limits.max_characters + 1) if result.text is None and result.json is not None else result.text or ""
    if not isinstance(text, str):
        raise TypeError(f"the text of a ToolResult must be a str, not a {type(text).__name__}")
    text, cut = cut_off(text, limits.max_characters)
    return ToolResponse(text, (), result.reward, dict(result.figures), cut)


def _as_result(value: Any) -> ToolResult:
    if isinstance(value, str):
        return ToolResult(text=value)
    if isinstance(value, TextPart | ImagePart):
        return ToolResult(parts=(value,))
    if isinstance(value, list | tuple) and value and all(isinstance(part, TextPart | ImagePart) for part in value):
        return ToolResult(parts=tuple(value))
    return ToolResult(json=value)


def _to_json(value: Any, characters: int) -> str:
    """JSON of a value, encoded only up to about `characters`."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False, default=_jsonable).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size >= characters:
            break
    return "".join(pieces)


def _jsonable(value: Any) -> Any:
    """JSON value of known types; others are rejected, since they may be endless."""
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
    """Truncate a text to `characters`; return it with the number of characters left out."""
    left_out = max(0, len(text) - characters)
    kept = text[: max(0, characters - len(CUT_MARK))] + CUT_MARK if left_out else text
    return mended(kept), left_out


def _bounded(parts: Sequence[ContentPart], limits: CallLimits) -> tuple[tuple[ContentPart, ...], int]:
    """Parts within the limits for all texts and all images together, and the number of characters left out."""
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
    try:
        if sum(len(image.data) for image in images) > limits.max_image_bytes:
            raise ImageFault("the images of the result are larger than max_image_bytes")
        check_count(len(images))
        for image in images:
            decode_image(image.data, image.media_type)
    except ImageFault as fault:
        raise ToolImageFault(str(fault)) from fault


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class OpenTool(Protocol):
    """A tool opened for one trajectory."""

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """Call the tool once. Raises ToolError, ToolMiss, or anything else for a fault."""
        ...

    async def release(self) -> None:
        """Release the trajectory's resources."""
        ...


class Tool(ABC):
    """What a policy may call. `parameters` is the JSON schema of its arguments, an object."""

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any], rules: CallRules) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self.rules = rules

    @abstractmethod
    async def open(self, trajectory_id: str, seed: int, task: Task) -> OpenTool:
        """Open the tool for one trajectory at `task`."""

    async def examine(self) -> None:
        """Raise an error if the tool is dead; its probe is checked separately."""
        return

    @property
    def schema(self) -> dict[str, Any]:
        """The tool's schema in the format of chat templates and OpenAI-compatible servers."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def read(self, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
        """Parse arguments to an object: the object itself, its JSON, or the plain text of the only required argument.

        Raises:
            ToolError: they are none of these, or contain what JSON or Unicode cannot represent.
        """
        try:
            values = as_object(arguments, self.parameters) if isinstance(arguments, str) else dict(arguments)
            json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ToolError(f"wrong arguments for {self.name}: {error}") from error
        return values


class StatelessTool(Tool):
    """A tool without state per trajectory; `open` returns the tool itself."""

    async def open(self, trajectory_id: str, seed: int, task: Task) -> OpenTool:
        return self

    @abstractmethod
    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """See `OpenTool.call`."""

    async def release(self) -> None:
        """Nothing to release."""


def check_name(name: str, where: str = "") -> str:
    """Return `name` if models and servers allow it for a tool. Raises RequestError if not."""
    if name == ANSWER:
        raise RequestError(f"a tool{where} is called {ANSWER!r}, which is the action that ends a trajectory: rename it.")
    if not _NAME.fullmatch(name):
        raise RequestError(f"a tool{where} is called {name!r}: a name must be a letter and up to 63 more letters, digits, _ or -.")
    return name
