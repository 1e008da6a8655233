"""How an action stands in tokens.

A dialect turns a question into a prompt, says where an action ends, reads the action, and encodes what comes back. Text that
the policy did not write is encoded with every control token split into plain text: a document that spells `</information>`
puts the letters into the context and never the token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from warehouse.errors import RequestError

CALL_TAGS = ("search", "answer", "code")
"""The tags that end an action; the tag is the tool's name."""
TAGS = ("question", "think", "information", *CALL_TAGS)
TRUNCATION_MARKER = " ..."


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy asks for: a tool with its arguments, after an optional thought."""

    tool: str
    arguments: str
    think: str | None = None


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why an action could not be read, in words that the policy is shown."""

    reason: str


class Dialect(Protocol):
    """How prompts, actions and observations stand in tokens."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens at which an action ends; they belong to the action."""
        ...

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        """The context that a trajectory begins with."""
        ...

    def parse(self, action_ids: Sequence[int]) -> Action | ParseError:
        """Read an action. Never raises for what a policy may sample."""
        ...

    def observation_ids(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """An observation of at most `max_tokens` tokens, what is too long cut off at the right with a marker."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        ...


class TagDialect:
    """Actions in tags, each tag one special token: `<think> ...</think><search> ...</search>`.

    Text inside a tag begins with one space. An action is an optional thought and exactly one call, and ends with the call's
    closing tag.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self._plain = _without_control_tokens(self._tokenizer)
        self._opening = {tag: self._token_id(f"<{tag}>") for tag in TAGS}
        self._closing = {tag: self._token_id(f"</{tag}>") for tag in TAGS}
        self._marker = self._plain_ids(TRUNCATION_MARKER)
        end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self._control = frozenset(self._tokenizer.get_added_tokens_decoder()) | set(end)
        self.stop_token_ids: tuple[int, ...] = (*(self._closing[tag] for tag in CALL_TAGS), *end)

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        """`<question> ...</question>`."""
        return self._wrapped("question", self._inside(question))

    def parse(self, action_ids: Sequence[int]) -> Action | ParseError:
        """Read `[<think> ...</think>]<call> ...</call>`; whatever else there is makes it an error."""
        ids = list(action_ids)
        think, rest = self._split_thought(ids)
        tool = next((tag for tag in CALL_TAGS if rest and rest[0] == self._opening[tag]), None)
        if tool is None:
            return ParseError(f"expected one of {', '.join(CALL_TAGS)}")
        if rest[-1] != self._closing[tool]:
            return ParseError(f"{tool} was not closed")
        if any(token in self._control for token in rest[1:-1]):
            return ParseError(f"a tag inside {tool}")
        return Action(tool, self._text(rest[1:-1]), think)

    def observation_ids(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """`<information> ...</information>`, tags counted within `max_tokens`."""
        inside = self._inside(text)
        room = max_tokens - 2
        if len(inside) > room:
            inside = inside[: max(0, room - len(self._marker))] + self._marker
        return self._wrapped("information", inside)

    def action_ids(self, action: Action) -> tuple[int, ...]:
        """The tokens of an action that was written rather than sampled: what a demonstration holds."""
        thought = () if action.think is None else self._wrapped("think", self._inside(action.think))
        return thought + self._wrapped(action.tool, self._inside(action.arguments))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def _split_thought(self, ids: list[int]) -> tuple[str | None, list[int]]:
        """The thought that `ids` begin with, and what follows; (None, ids) where they do not begin with one."""
        if not ids or ids[0] != self._opening["think"] or self._closing["think"] not in ids:
            return None, ids
        end = ids.index(self._closing["think"])
        if any(token in self._control for token in ids[1:end]):
            return None, ids
        return self._text(ids[1:end]), ids[end + 1 :]

    def _text(self, ids: list[int]) -> str:
        return self.decode(ids).strip()

    def _inside(self, text: str) -> tuple[int, ...]:
        return self._plain_ids(f" {text.strip()}")

    def _wrapped(self, tag: str, inside: tuple[int, ...]) -> tuple[int, ...]:
        return (self._opening[tag], *inside, self._closing[tag])

    def _plain_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def _token_id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise RequestError(f"the policy's tokenizer has no token {token}: add the tags to it before it is used with them.")
        return int(token_id)


def action_text(action: Action) -> str:
    """An action as text."""
    thought = "" if action.think is None else f"<think> {action.think}</think>"
    return f"{thought}<{action.tool}> {action.arguments}</{action.tool}>"


def prompt_text(question: str) -> str:
    """A prompt as text."""
    return f"<question> {question}</question>"


def observation_text(text: str) -> str:
    """An observation as text."""
    return f"<information> {text}</information>"


def _without_control_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer without its added tokens, so that no text whatever becomes one of them."""
    description = json.loads(tokenizer.to_str())
    description.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(description))
