"""The dialect of policies from scratch: actions in tags, each tag one special token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from rl.policies.tokenization import TAGS
from rl.renderers.base import Action, ActionTurn, Cut, ParseError, Result, Schema, text_of
from rl.renderers.plain_text import PlainText
from warehouse.errors import RequestError

CALL_TAGS = ("search", "answer", "code")
"""The tags that end an action; the tag is the tool's name."""
_AROUND = 2
"""Tokens of the tags around an observation."""


class TagDialect:
    """`<think> ...</think><search> ...</search>`: an optional thought and exactly one call, which its closing tag ends.

    Text inside a tag begins with one space. The prompt does not list the tools: a tag is the name of its tool.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._plain = PlainText(tokenizer)
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self._opening = {tag: self._token_id(f"<{tag}>") for tag in TAGS}
        self._closing = {tag: self._token_id(f"</{tag}>") for tag in TAGS}
        self.stop_token_ids: tuple[int, ...] = (*(self._closing[tag] for tag in CALL_TAGS), *self._plain.end)

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Cut | None = None) -> tuple[int, ...]:
        """`<question> ...</question>`, and `<information> ...</information>` where there is something to see."""
        prompt = self._wrapped("question", question)
        return prompt + self.observation_ids(seen, cut) if seen else prompt

    def parse(self, action_ids: Sequence[int]) -> ActionTurn | ParseError:
        """Read `[<think> ...</think>]<call> ...</call>`; whatever else there is makes it an error."""
        think, rest = self._split_thought(list(action_ids))
        tool = next((tag for tag in CALL_TAGS if rest and rest[0] == self._opening[tag]), None)
        if tool is None:
            return ParseError(f"expected one of {', '.join(CALL_TAGS)}")
        if rest[-1] != self._closing[tool]:
            return ParseError(f"{tool} was not closed")
        if not self._plain.control.isdisjoint(rest[1:-1]):
            return ParseError(f"a tag inside {tool}")
        return ActionTurn((Action(tool, self._text(rest[1:-1])),), think)

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Cut) -> tuple[int, ...]:
        """One observation after the other."""
        return tuple(chain.from_iterable(self.observation_ids(text_of(result), cut) for result in results))

    def observation_ids(self, text: str, cut: Cut | None = None) -> tuple[int, ...]:
        """`<information> ...</information>`, tags counted within the cut."""
        inside = f" {text.strip()}"
        return self._wrapped("information", inside if cut is None else self._plain.cut(inside, Cut(cut.max_tokens - _AROUND, cut.side)))

    def action_ids(self, action: Action, think: str | None = None) -> tuple[int, ...]:
        """The tokens of an action that was written rather than sampled: what a demonstration holds."""
        thought = () if think is None else self._wrapped("think", think)
        return thought + self._wrapped(action.tool, action.arguments)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self._plain.decode(token_ids)

    def _split_thought(self, ids: list[int]) -> tuple[str | None, list[int]]:
        """The thought that `ids` begin with, and what follows; (None, ids) where they do not begin with one."""
        if not ids or ids[0] != self._opening["think"] or self._closing["think"] not in ids:
            return None, ids
        end = ids.index(self._closing["think"])
        if not self._plain.control.isdisjoint(ids[1:end]):
            return None, ids
        return self._text(ids[1:end]), ids[end + 1 :]

    def _text(self, ids: list[int]) -> str:
        return self.decode(ids).strip()

    def _wrapped(self, tag: str, text: str) -> tuple[int, ...]:
        return (self._opening[tag], *self._plain.ids(f" {text.strip()}"), self._closing[tag])

    def _token_id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise RequestError(f"the policy's tokenizer has no token {token}: add the tags to it before it is used with them.")
        return int(token_id)


def prompt_text(question: str) -> str:
    """A prompt as text."""
    return f"<question> {question}</question>"
