"""The interface of dialects: how prompts, actions and observations stand in tokens.

A dialect turns a question into a prompt, says where an action ends, parses the action, and encodes what comes back; and it writes an action
down that nobody sampled, so that a demonstration has the ids which a rollout of the same actions would have. Text that the
policy did not write never becomes a control token: a document that spells `</information>` or `<|im_end|>` puts the letters into
the context and not the token. The dialects themselves are the other modules of `rl/renderers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from rl.content import ContentPart, ImagePart, PlacedImage

TRUNCATION_MARKER = " ..."
"""What stands where something was cut off."""

Side = Literal["right", "left", "middle"]
Schema = Mapping[str, Any]
"""A tool as chat templates and OpenAI-compatible servers want it: `{"type": "function", "function": {"name": ..., ...}}`."""


@dataclass(frozen=True, slots=True)
class Action:
    """One call that the policy asks for: a tool with its arguments, as plain text or as JSON."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ActionTurn:
    """What the policy wrote in one turn: at least one call, after an optional thought."""

    calls: tuple[Action, ...]
    think: str | None = None


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why an action could not be parsed, in words that the policy is shown."""

    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one call, as the policy is to see it; `parts` is there where it is more than text."""

    text: str
    parts: tuple[ContentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncation:
    """How long one observation may be, in tokens, and where it is cut off with a marker; `middle` keeps both ends."""

    max_tokens: int
    side: Side = "right"


@dataclass(frozen=True, slots=True)
class Reply:
    """What is appended after an action: token ids, and the images whose placeholders stand among them, in order."""

    ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()


class ContentRefused(Exception):
    """A result holds what the dialect cannot show this policy, such as an image; a sentence that says so."""


class NotExpressible(Exception):
    """The dialect has no way to write something down; a sentence that says what and why."""


class RolloutDialect(Protocol):
    """What the agent loop needs: how prompts, actions and observations stand in tokens."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens at which an action ends; they belong to the action."""
        ...

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Truncation | None = None) -> tuple[int, ...]:
        """The context that a trajectory begins with; `seen` is what the environment shows beside the question."""
        ...

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Parse an action; the schemas of the tools on offer say what a text without quotes stands for.

        Never raises for what a policy may sample.
        """
        ...

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        """What is appended after `action_ids`: one result for each of its calls, or the correction where it could not be read.

        Raises:
            ContentRefused: where a result holds an image and the policy takes none.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        ...


class Dialect(RolloutDialect, Protocol):
    """How a policy's rollouts stand in tokens, and the examples that it is trained on."""

    def action_ids(self, turn: ActionTurn, tools: Sequence[Schema] = ()) -> tuple[int, ...]:
        """The tokens of an action that was written rather than sampled, up to and with the one that ends it: `parse` gives its calls back.

        `tools` are those on offer. A thought that the dialect has no place for is left out; a turn without calls is a thought alone.

        Raises:
            NotExpressible: where a policy could not have written it.
        """
        ...

    def text_ids(self, text: str, is_document: bool = False) -> tuple[int, ...]:
        """A text that stands in no conversation, or a document to be read; none of its tokens is a control token of the text's own."""
        ...


@runtime_checkable
class TakesImages(Protocol):
    """A dialect that may show images too, where the policy takes them."""

    @property
    def placeholder_id(self) -> int | None:
        """The token that stands for images and for nothing else, and that no policy may write; None where the policy takes none."""
        ...

    def reply(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> Reply:
        """`Dialect.reply_ids`, with the images among them. The cut is of the texts; images are not cut.

        Raises:
            ContentRefused: where a result holds an image and the policy takes none.
            ImageFault: where it holds one that cannot be decoded.
        """
        ...


def holds_image(result: Result) -> bool:
    """Whether a result holds an image."""
    return any(isinstance(part, ImagePart) for part in result.parts)


def text_of(result: Result) -> str:
    """The text of a result.

    Raises:
        ContentRefused: where there is more than text in it.
    """
    for part in result.parts:
        if isinstance(part, ImagePart):
            raise ContentRefused(
                f"a tool returned {part.media_type}, and this policy is given token ids of text alone; "
                "use a tool that describes images, or a policy and a dialect that take them"
            )
    return result.text
