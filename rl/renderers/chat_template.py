"""A model's chat template as pieces: its markup, and slots for texts from outside.

A template is rendered once per message shape with a slot word in place of each text, and split at these words. So no text can change what
the template does, and control tokens are recognized in markup only. Between control tokens, markup and texts are encoded together, which
gives the ids of the full rendering.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from rl.renderers.base import Schema
from rl.renderers.plain_text import PlainText
from warehouse.errors import RequestError

Message = Mapping[str, Any]
_SLOT = re.compile(r"slotc4f9a8e2x(\d+)x")
_SYNTAX = re.compile(r"</?(think|tool_call|tool_response|arg_key|arg_value)>")
"""Tokens inside a message, never its end, even if a tokenizer calls them special."""
PROBE_TEXT = ' "a"\\\n<b> & \'é\t'
"""Reveals the template's filter: leading and trailing whitespace, quotes, a backslash and a line break."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of text `number`."""

    number: int


Piece = str | Slot
Filter = Callable[[str], str]


def slot(number: int) -> str:
    """The word that stands for text `number` during rendering."""
    return f"slotc4f9a8e2x{number}x"


class TemplateRefused(Exception):
    """The template cannot render such messages."""


class ChatTemplate:
    """A tokenizer's chat template; `variables` are passed to it (`enable_thinking`, ...), and `today` is its date."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str | None, variables: Mapping[str, Any], today: date) -> None:
        self._tokenizer = tokenizer
        self._text = text
        self._variables = {"date_string": today.strftime("%d %b %Y"), **variables, "strftime_now": today.strftime}
        self.plain = PlainText(tokenizer)
        self.special = {text: number for text, number in self.plain.special.items() if not _SYNTAX.fullmatch(text)}
        self._control = _any_of(self.plain.added)
        self._special = _any_of(self.special)
        if text is None and tokenizer.chat_template is None:
            raise RequestError("the policy's tokenizer has no chat template; use the dialect of tags, or name a template.")

    def render(self, messages: Sequence[Message], tools: Sequence[Schema], generate: bool) -> str:
        """The conversation as text; with `generate`, up to the generation prompt. Raises TemplateRefused."""
        try:
            rendered = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._text,
                add_generation_prompt=generate,
                tokenize=False,
                **self._variables,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TemplateRefused(f"{type(error).__name__}: {error}") from error
        return str(rendered)

    def pieces(self, messages: Sequence[Message], tools: Sequence[Schema], generate: bool) -> tuple[Piece, ...]:
        """The conversation split at its slots."""
        parts = _SLOT.split(self.render(messages, tools, generate))
        return tuple(Slot(int(part)) if number % 2 else part for number, part in enumerate(parts) if number % 2 or part)

    def encode(self, pieces: Sequence[Piece], texts: Mapping[int, str]) -> tuple[int, ...]:
        """Token ids of pieces with `texts` in their slots; control tokens come from the markup only."""
        ids: list[int] = []
        pending = ""
        for piece in pieces:
            if isinstance(piece, Slot):
                pending += texts[piece.number]
                continue
            for number, part in enumerate(self._control.split(piece)):
                if number % 2:
                    ids += [*self.plain.ids(pending), self.plain.added[part]]
                    pending = ""
                else:
                    pending += part
        return (*ids, *self.plain.ids(pending))

    def tokenize(self, messages: Sequence[Message], tools: Sequence[Schema], generate: bool) -> tuple[int, ...]:
        """Token ids of the whole conversation as the tokenizer renders and encodes it."""
        return tuple(self._tokenizer(self.render(messages, tools, generate), add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, including control tokens."""
        return self.plain.decode(token_ids)

    def after_last_special(self, text: str) -> str:
        """`text` after its last special token."""
        return self._special.split(text)[-1]

    def after_stop(self, pieces: Sequence[Piece], number: int) -> tuple[str | None, tuple[Piece, ...]]:
        """The first special token after slot `number` and what follows it; (None, ()) if that markup has none."""
        if Slot(number) not in pieces:
            return None, ()
        place = len(pieces) - 1 - tuple(reversed(pieces)).index(Slot(number))
        for later, piece in enumerate(pieces[place + 1 :], start=place + 1):
            if isinstance(piece, Slot):
                break
            found = self._special.search(piece)
            if found is not None:
                rest = piece[found.end() :]
                return found[0], (*([rest] if rest else []), *pieces[later + 1 :])
        return None, ()

    def filter_of(self, before: Sequence[Message], role: str) -> Filter:
        """The template's filter for a message of `role` after `before`.

        Raises:
            TemplateRefused: it neither keeps, strips nor JSON-quotes the text.
        """
        framed = self.render([*before, {"role": role, "content": slot(0)}], (), generate=False)
        shown = self.render([*before, {"role": role, "content": PROBE_TEXT}], (), generate=False)
        start, _, end = framed.rpartition(slot(0))
        for candidate in (_unchanged, str.strip, _as_json):
            if shown == start + candidate(PROBE_TEXT) + end:
                return candidate
        raise TemplateRefused(f"it changes the text of {role} messages in a way that cannot be followed")

    def refuse_spelled(self, text: str) -> None:
        """Raises TemplateRefused if `text` spells a control token, which would be indistinguishable once rendered."""
        found = self._control.search(text)
        if found is not None:
            raise TemplateRefused(f"it holds the control token {found[0]!r}")

    def refuse_control_tokens(self, tools: Sequence[Schema]) -> None:
        """Raises RequestError if a tool's description, which is part of the markup, spells a control token."""
        for tool in tools:
            found = self._control.search(json.dumps(tool, ensure_ascii=False))
            if found is not None:
                raise RequestError(
                    f"the tool {tool['function']['name']!r} describes itself with the control token {found[0]!r}; take it out."
                )


def _any_of(tokens: Mapping[str, int]) -> re.Pattern[str]:
    """A one-group pattern for any of `tokens`, longest first; matches nothing if there are none."""
    alternatives = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    return re.compile(f"({alternatives or '(?!)'})")


def _unchanged(text: str) -> str:
    return text


def _as_json(text: str) -> str:
    """JSON without the outer quotes, which are markup."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
