"""Dialect of policies from scratch: actions in tags, each a special token. For other policies the prompt explains the tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from rl.call_arguments import as_text, of_text, parameters_of
from rl.policies.tokenization import TAGS, is_from_scratch
from rl.renderers.base import Action, ActionTurn, NotExpressible, ParseError, Result, Schema, Truncation, text_of
from rl.renderers.plain_text import PlainText
from rl.renderers.tool_parsers import read_json_calls
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Part, PartKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CALL_TAGS = ("search", "answer", "code")
"""Tags that end an action; the tag is the tool's name."""
_AROUND = 2
"""Number of tag tokens around an observation."""


class TagDialect:
    """`<think> ...</think><search> ...</search>`: an optional thought and exactly one call, which its closing tag ends.

    Text inside a tag starts with one space. `introduce` says whether the prompt explains tags and tools; by default it does unless the
    policy was trained from scratch.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, introduce: bool | None = None) -> None:
        self._introduces = not is_from_scratch(tokenizer) if introduce is None else introduce
        self._plain = PlainText(tokenizer)
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self._opening = {tag: self._token_id(f"<{tag}>") for tag in TAGS}
        self._closing = {tag: self._token_id(f"</{tag}>") for tag in TAGS}
        self.stop_token_ids: tuple[int, ...] = (*(self._closing[tag] for tag in CALL_TAGS), *self._plain.end)

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Truncation | None = None) -> tuple[int, ...]:
        """`<question> ...</question>`, then `<information> ...</information>` if there is something to see."""
        prompt = self._introduction(tools) + self._wrapped("question", question)
        return prompt + self.observation_ids(seen, cut) if seen else prompt

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Parse `[<think> ...</think>]<call> ...</call>`, or a plain JSON call (`rl.renderers.tool_parsers`)."""
        think, rest = self._split_thought(list(action_ids))
        tool = next((tag for tag in CALL_TAGS if rest and rest[0] == self._opening[tag]), None)
        if tool is None:
            written = self._json_call(rest, think, tools)
            if written is not None:
                return written
            return ParseError(f"expected one of {', '.join(CALL_TAGS)}")
        if rest[-1] != self._closing[tool]:
            return ParseError(f"{tool} was not closed")
        if not self._plain.control.isdisjoint(rest[1:-1]):
            return ParseError(f"a tag inside {tool}")
        text = self._text(rest[1:-1])
        return ActionTurn((Action(tool, text if tool == ANSWER else of_text(text, parameters_of(tool, tools))),), think)

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self.observation_ids(text_of(result), cut) for result in results))

    def observation_ids(self, text: str, cut: Truncation | None = None) -> tuple[int, ...]:
        """`<information> ...</information>`; the tags count towards the token limit."""
        inside = f" {text.strip()}"
        return self._wrapped(
            "information", inside if cut is None else self._plain.cut(inside, Truncation(cut.max_tokens - _AROUND, cut.side))
        )

    def action_ids(self, turn: ActionTurn, tools: Sequence[Schema] = ()) -> tuple[int, ...]:
        """`[<think> ...</think>]<call> ...</call>`; without a call, the thought only."""
        if len(turn.calls) > 1:
            raise NotExpressible("the dialect of tags allows one call per action")
        ids = () if turn.think is None else self._wrapped("think", turn.think)
        for call in turn.calls:
            if call.tool not in CALL_TAGS:
                raise NotExpressible(f"the dialect of tags has no tag for the tool {call.tool!r}")
            own = call.arguments if call.tool == ANSWER else as_text(call.arguments, parameters_of(call.tool, tools))
            ids += self._wrapped(call.tool, own)
        return ids

    def text_ids(self, text: str, is_document: bool = False) -> tuple[int, ...]:
        """Documents are rendered like search results, because a small policy learns to copy sooner if all it reads has one form."""
        return self.observation_ids(text) if is_document else self._plain.ids(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._plain.decode(token_ids)

    def _introduction(self, tools: Sequence[Schema]) -> tuple[int, ...]:
        """Explanation of the tags, with the tags as tokens; empty if the policy knows them."""
        if not self._introduces:
            return ()
        ids = self._plain.ids("Answer the question. You may think first; then write one action, and nothing behind it.\n")
        for function in (tool["function"] for tool in tools if tool["function"]["name"] in CALL_TAGS):
            ids += self._wrapped(function["name"], "...") + self._plain.ids(f": {function.get('description', '')}\n")
        ids += self._wrapped("answer", "...") + self._plain.ids(": the answer, as short as can be. It ends the task.\n")
        ids += self._wrapped("think", "...") + self._plain.ids(": a thought.\n")
        return ids + self._wrapped("information", "...") + self._plain.ids(": what an action brought.\n")

    def _split_thought(self, ids: list[int]) -> tuple[str | None, list[int]]:
        """Split off the leading thought; (None, ids) without one."""
        if not ids or ids[0] != self._opening["think"] or self._closing["think"] not in ids:
            return None, ids
        end = ids.index(self._closing["think"])
        if not self._plain.control.isdisjoint(ids[1:end]):
            return None, ids
        return self._text(ids[1:end]), ids[end + 1 :]

    def _json_call(self, ids: list[int], think: str | None, tools: Sequence[Schema]) -> ActionTurn | ParseError | None:
        """A plain JSON call up to the end token; None if there is none."""
        if not ids or ids[-1] not in self._plain.end or not self._plain.control.isdisjoint(ids[:-1]):
            return None
        turn = read_json_calls(self._text(ids[:-1]), tools)
        if isinstance(turn, ActionTurn) and len(turn.calls) > 1:
            return ParseError("only one call is possible in a message")
        return replace(turn, think=think) if isinstance(turn, ActionTurn) and think else turn

    def _text(self, ids: list[int]) -> str:
        return self.decode(ids).strip()

    def _wrapped(self, tag: str, text: str) -> tuple[int, ...]:
        return (self._opening[tag], *self._plain.ids(f" {text.strip()}"), self._closing[tag])

    def _token_id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise RequestError(f"the policy's tokenizer has no token {token}: add the tags to it, or use another dialect.")
        return int(token_id)


def tagged_text(parts: Iterable[Part]) -> str:
    """An example as tagged text, for training tokenizers, CPT exports, and digests that identify examples."""
    return "".join(map(_tagged, parts))


_TAG_OF = {
    PartKind.QUESTION: "question",
    PartKind.THOUGHT: "think",
    PartKind.RESULT: "information",
    PartKind.DOCUMENT: "information",
    PartKind.ANSWER: "answer",
}


def _tagged(part: Part) -> str:
    if part.kind in (PartKind.TEXT, PartKind.TOKENS):
        return part.text
    tag = part.tool or _TAG_OF.get(part.kind)
    return f"<{tag}> {part.text.strip()}</{tag}>" if tag else ""
