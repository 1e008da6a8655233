"""A model's own chat template as pieces: what the template writes, and the slots that texts from outside are put into.

A template is rendered with a word in the place of each text, once for each shape of message, and cut at these words. So no text can
change what the template does, and it is known which characters are markup: control tokens are recognised in markup alone. Between two
control tokens markup and texts are encoded together, which gives the very ids that the whole rendering would have.
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
"""Tokens that a message is made of, rather than ended by, even where a tokenizer calls them special."""
PROBE_TEXT = ' "a"\\\n<b> & \'é\t'
"""A text that shows the template's filter: it begins and ends with blanks, and holds quotes, a backslash and a line break."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a text, by its number."""

    number: int


Piece = str | Slot
Filter = Callable[[str], str]


def slot(number: int) -> str:
    """The word that stands for text `number` while a template is rendered."""
    return f"slotc4f9a8e2x{number}x"


class TemplateRefused(Exception):
    """The template cannot render such messages."""


class ChatTemplate:
    """The chat template of a tokenizer; `variables` are given to it (`enable_thinking`, ...), `today` is the date that it is given."""

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
        """The conversation as text; with `generate`, up to where the assistant begins to speak.

        Raises:
            TemplateRefused: where the template takes no such conversation.
        """
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
        """The conversation cut at its slots."""
        parts = _SLOT.split(self.render(messages, tools, generate))
        return tuple(Slot(int(part)) if number % 2 else part for number, part in enumerate(parts) if number % 2 or part)

    def encode(self, pieces: Sequence[Piece], texts: Mapping[int, str]) -> tuple[int, ...]:
        """The ids of pieces with `texts` in their slots: control tokens come from the markup and from nowhere else."""
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
        """The ids of the whole conversation as the tokenizer itself renders and encodes it."""
        return tuple(self._tokenizer(self.render(messages, tools, generate), add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self.plain.decode(token_ids)

    def after_last_special(self, text: str) -> str:
        """The part of `text` behind its last special token."""
        return self._special.split(text)[-1]

    def after_stop(self, pieces: Sequence[Piece], number: int) -> tuple[str | None, tuple[Piece, ...]]:
        """The first special token behind slot `number`, and what follows it; (None, ()) where there is none in that markup."""
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
        """The template's filter of the text of a message of `role` that follows `before`.

        Raises:
            TemplateRefused: where it neither leaves the text unchanged, nor strips it, nor quotes it as JSON.
        """
        framed = self.render([*before, {"role": role, "content": slot(0)}], (), generate=False)
        shown = self.render([*before, {"role": role, "content": PROBE_TEXT}], (), generate=False)
        start, _, end = framed.rpartition(slot(0))
        for candidate in (_unchanged, str.strip, _as_json):
            if shown == start + candidate(PROBE_TEXT) + end:
                return candidate
        raise TemplateRefused(f"it changes the text of {role} messages in a way that cannot be followed")

    def refuse_spelled(self, text: str) -> None:
        """Raises TemplateRefused where `text` spells a control token, which could not be told from markup once it is rendered."""
        found = self._control.search(text)
        if found is not None:
            raise TemplateRefused(f"it holds the control token {found[0]!r}")

    def refuse_control_tokens(self, tools: Sequence[Schema]) -> None:
        """Tools describe themselves in the prompt's markup, so no control token may stand in their descriptions.

        Raises:
            RequestError: where one does.
        """
        for tool in tools:
            found = self._control.search(json.dumps(tool, ensure_ascii=False))
            if found is not None:
                raise RequestError(
                    f"the tool {tool['function']['name']!r} describes itself with the control token {found[0]!r}; take it out."
                )


def _any_of(tokens: Mapping[str, int]) -> re.Pattern[str]:
    """A pattern of one group that finds any of `tokens`, the longest first; nothing at all where there are none."""
    alternatives = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    return re.compile(f"({alternatives or '(?!)'})")


def _unchanged(text: str) -> str:
    return text


def _as_json(text: str) -> str:
    """Without the quotes around it, which are markup."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
