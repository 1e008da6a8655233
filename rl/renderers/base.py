"""Protocol of dialects, which render prompts, actions and observations as tokens.

A dialect renders the prompt, defines where an action ends, parses the action and encodes results. It also renders actions that were not
sampled, so that a demonstration has the same ids as a rollout of the same actions. Text that the policy did not write never becomes a
control token: a document with `</information>` or `<|im_end|>` contributes its characters, not the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from rl.call_arguments import as_object, parameters_of
from rl.content import ContentPart, ImagePart, PlacedImage
from warehouse.settings import Section

TRUNCATION_MARKER = " ..."
"""Marks where text was cut off."""

Side = Literal["right", "left", "middle"]
Schema = Mapping[str, Any]
"""Tool schema in OpenAI's format: `{"type": "function", "function": {"name": ..., ...}}`."""


@dataclass(frozen=True, slots=True)
class Action:
    """One tool call; arguments are plain text or JSON."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ActionTurn:
    """What the policy wrote in one turn: an optional thought, then calls. A parsed turn has at least one call."""

    calls: tuple[Action, ...]
    think: str | None = None


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why an action could not be parsed, as shown to the policy."""

    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one call as shown to the policy; `parts` is set if it is more than text."""

    text: str
    parts: tuple[ContentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncation:
    """Token limit of an observation and the side that is cut; `middle` keeps both ends."""

    max_tokens: int
    side: Side = "right"


@dataclass(frozen=True, slots=True)
class Reply:
    """Token ids appended after an action, and the images whose placeholders they contain, in order."""

    ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()


class ContentRefused(Exception):
    """The dialect cannot show a result, such as an image, to this policy."""


class NotExpressible(Exception):
    """The dialect cannot express something; the message says what and why."""


def named_arguments(tool: str, arguments: str, tools: Sequence[Schema]) -> dict[str, Any]:
    """A call's arguments by name, according to the tool's schema. Raises NotExpressible if they cannot be named."""
    try:
        return as_object(arguments, parameters_of(tool, tools))
    except ValueError as error:
        raise NotExpressible(f"the arguments of a call of {tool!r} have no names: {error}"[:300]) from error


class RolloutDialect(Protocol):
    """Part of a dialect that the agent loop uses."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an action and belong to it."""
        ...

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Truncation | None = None) -> tuple[int, ...]:
        """Initial context of a trajectory; `seen` is what the environment shows in addition to the question."""
        ...

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Parse an action; the schemas of the offered tools give types to unquoted values. Never raises for sampled ids."""
        ...

    def action_ids(self, turn: ActionTurn, tools: Sequence[Schema] = ()) -> tuple[int, ...]:
        """Token ids of a written (not sampled) action, including the stop token; `parse` returns its calls.

        `tools` are the offered tools. A thought that the dialect cannot place is dropped; a turn without calls is a thought only.

        Raises:
            NotExpressible: a policy could not have written it.
        """
        ...

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        """Ids to append after `action_ids`: one result per call, or the correction after a parse error.

        Raises:
            ContentRefused: a result contains an image and the policy takes none.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, including control tokens."""
        ...


class Dialect(RolloutDialect, Protocol):
    """A dialect for rollouts and for training examples."""

    def text_ids(self, text: str, is_document: bool = False) -> tuple[int, ...]:
        """Token ids of text outside a conversation, or of a document; no control token comes from the text."""
        ...


@runtime_checkable
class TakesImages(Protocol):
    """A dialect that can show images if the policy takes them."""

    @property
    def placeholder_id(self) -> int | None:
        """Image placeholder token, which no policy may write; None if the policy takes no images."""
        ...

    def reply(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> Reply:
        """Like `reply_ids`, with images. The truncation applies to text only.

        Raises:
            ContentRefused: a result contains an image and the policy takes none.
            ImageFault: an image cannot be decoded.
        """
        ...


def holds_image(result: Result) -> bool:
    return any(isinstance(part, ImagePart) for part in result.parts)


def text_of(result: Result) -> str:
    """Text of a result. Raises ContentRefused if it contains an image."""
    for part in result.parts:
        if isinstance(part, ImagePart):
            raise ContentRefused(
                f"a tool returned {part.media_type}, but this policy accepts only text; "
                "use a tool that describes images, or a policy and a dialect that support them"
            )
    return result.text


class DialectConfig(Section):
    """How prompts, actions and observations are rendered in tokens."""

    kind: str = "chat"
    """`tags`, `chat`, or a factory as `module:attribute` or `file.py:attribute`, called with tokenizer and `options`."""
    template: str = "own"
    """`chat`: the tokenizer's `own` template, TRL's `training` variant of it, `chatml_tools`, or a file."""
    system: str | None = None
    """`chat`: system message; None: the template's default."""
    introduce: bool | None = None
    """`tags`: explain tags and tools in the prompt; None: unless the policy was trained from scratch."""
    variables: dict[str, Any] = Field(default_factory=dict)
    """`chat`: template variables, such as `enable_thinking = false`."""
    today: date = date(2025, 1, 1)
    """`chat`: fixed date for templates that show one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a custom dialect."""
