"""A model's chat template split into pieces: its markup, and slots for untrusted texts.

A template is rendered once per message shape with a slot word in place of each text, and split at these words. So no text can change what
the template does, and control tokens are recognized in markup only. Markup and texts between control tokens are encoded together, which
gives the ids of the full rendering. `find_layout` determines what the template writes around calls and results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from rl.renderers.base import Action, ActionTurn, Schema
from rl.renderers.plain_text import PlainText
from rl.renderers.tool_parsers import TOOL_PARSERS, ToolParser
from warehouse.errors import RequestError

Message = Mapping[str, Any]
_SLOT = re.compile(r"slotc4f9a8e2x(\d+)x")
_SYNTAX = re.compile(r"</?(think|tool_call|tool_response|arg_key|arg_value)>")
"""Tokens that occur inside a message and never end it, even if the tokenizer marks them as special."""
PROBE_TEXT = ' "a"\\\n<b> & \'é\t'
"""Reveals the template's filter: has leading and trailing whitespace, quotes, a backslash and a line break."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Placeholder of text `number`."""

    number: int


Piece = str | Slot
Filter = Callable[[str], str]


def slot(number: int) -> str:
    """Word that stands for text `number` during rendering."""
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
            raise RequestError("the policy's tokenizer has no chat template; use the dialect of tags, or choose a template.")

    def render(self, messages: Sequence[Message], tools: Sequence[Schema], generate: bool) -> str:
        """Render the conversation as text; with `generate`, up to the generation prompt. Raises TemplateRefused."""
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
        """Token ids of pieces with `texts` in their slots; control tokens come from markup only."""
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
        return self.plain.decode(token_ids)

    def after_last_special(self, text: str) -> str:
        return self._special.split(text)[-1]

    def after_stop(self, pieces: Sequence[Piece], number: int) -> tuple[str | None, tuple[Piece, ...]]:
        """First special token after slot `number`, and the pieces after it; (None, ()) if the markup there has none."""
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
        """The template's text filter for a message of `role` after `before`.

        Raises:
            TemplateRefused: the template neither keeps, strips nor JSON-escapes the text.
        """
        framed = self.render([*before, {"role": role, "content": slot(0)}], (), generate=False)
        shown = self.render([*before, {"role": role, "content": PROBE_TEXT}], (), generate=False)
        start, _, end = framed.rpartition(slot(0))
        for candidate in (_unchanged, str.strip, _as_json):
            if shown == start + candidate(PROBE_TEXT) + end:
                return candidate
        raise TemplateRefused(f"it changes the text of {role} messages other than by stripping or JSON escapes")

    def refuse_spelled(self, text: str) -> None:
        """Raise TemplateRefused if `text` contains a control token, which would be indistinguishable once rendered."""
        found = self._control.search(text)
        if found is not None:
            raise TemplateRefused(f"the text contains the control token {found[0]!r}")

    def refuse_control_tokens(self, tools: Sequence[Schema]) -> None:
        """Raise RequestError if a tool's description, which is part of the markup, contains a control token."""
        for tool in tools:
            found = self._control.search(json.dumps(tool, ensure_ascii=False))
            if found is not None:
                raise RequestError(
                    f"the schema of the tool {tool['function']['name']!r} contains the control token {found[0]!r}; remove it."
                )


def _any_of(tokens: Mapping[str, int]) -> re.Pattern[str]:
    """One-group pattern for any of `tokens`, longest first; matches nothing if there are none."""
    alternatives = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    return re.compile(f"({alternatives or '(?!)'})")


def _unchanged(text: str) -> str:
    return text


def _as_json(text: str) -> str:
    """JSON without the outer quotes, which are markup."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


QUESTION, WRITTEN, NAME, ARGUMENT, RESULT = 0, 1, 1_000, 2_000, 3_000
"""Slot numbers; the last three are the first of a series with one per call."""
ARGUMENT_NAME = "query"
PROBE_TOOL: Schema = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {ARGUMENT_NAME: {"type": "string"}}, "required": [ARGUMENT_NAME]},
    },
}
_ASKED: Message = {"role": "user", "content": slot(QUESTION)}


Thoughts = Literal["reasoning", "tagged", "spoken", "none"]
"""Where a thought goes: `reasoning_content`, `<think>` within the content, the content, or nowhere."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Properties of a template: call format, stop tokens, text filters, markup of a correction.

    `thoughts` says where a thought goes before a call; `opens_thought` whether the generation prompt already opens one.
    """

    call_format: str
    thoughts: Thoughts
    opens_thought: bool
    parallel_calls: bool
    call_stop: str
    answer_stop: str
    question_filter: Filter
    result_filter: Filter
    correction_role: str
    correction: tuple[Piece, ...]

    @property
    def parser(self) -> ToolParser:
        return TOOL_PARSERS[self.call_format]


def find_layout(template: ChatTemplate) -> Layout:
    """Determine the layout of `template`.

    Raises:
        TemplateRefused: it shows no tools, calls or results, or no parser knows its call format.
    """
    shown = template.render([_ASKED], [PROBE_TOOL], generate=True)
    if "lookup" not in shown:
        raise TemplateRefused("it does not list the available tools")
    call_stop, _ = reply_markup(template, 1)
    answer_stop = _answer_stop(template)
    role, correction = _correction(template)
    return Layout(
        call_format=_call_format(template, call_stop),
        thoughts=_thoughts(template),
        opens_thought=_opens_thought(template),
        parallel_calls=_allows_parallel_calls(template),
        call_stop=call_stop,
        answer_stop=answer_stop,
        question_filter=template.filter_of([], "user"),
        result_filter=template.filter_of([_ASKED, call_message([("lookup", "a")])], "tool"),
        correction_role=role,
        correction=correction,
    )


def call_id(number: int) -> str:
    """Id of call `number` of a conversation; some templates require nine alphanumeric characters."""
    return f"call{number:05d}"


def tool_call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call in OpenAI's format."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call_message(calls: Sequence[tuple[str, str]], **preamble: str) -> Message:
    """Assistant message with one-argument calls; `preamble` is its content, or a thought."""
    tool_calls = [tool_call(call_id(number), name, {ARGUMENT_NAME: argument}) for number, (name, argument) in enumerate(calls)]
    return {"role": "assistant", "content": "", **preamble, "tool_calls": tool_calls}


def assistant_message(calls: Sequence[tuple[str, dict[str, Any]]], answer: str | None, thought: str | None, thoughts: Thoughts) -> Message:
    """Assistant message with calls or an answer, after a thought if `thoughts` has a place for it."""
    content = answer or ""
    message: dict[str, Any] = {"role": "assistant"}
    if thoughts == "reasoning":
        message["reasoning_content"] = thought or ""
    elif thoughts == "tagged":
        content = f"<think>\n{thought or ''}\n</think>\n\n{content}"
    elif thoughts == "spoken" and answer is None:
        content = thought or ""
    message["content"] = content
    if calls:
        message["tool_calls"] = [tool_call(call_id(number), name, arguments) for number, (name, arguments) in enumerate(calls)]
    return message


def tool_message(number: int, name: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id(number), "name": name, "content": content}


def reply_markup(template: ChatTemplate, count: int) -> tuple[str, tuple[Piece, ...]]:
    """Token that ends a message of `count` calls, and the markup of their results up to the generation prompt. Raises TemplateRefused."""
    asked = call_message([(slot(NAME + number), slot(ARGUMENT + number)) for number in range(count)])
    results = [tool_message(number, slot(NAME + number), slot(RESULT + number)) for number in range(count)]
    pieces = template.pieces([_ASKED, asked, *results], (), generate=True)
    stop, rest = template.after_stop(pieces, ARGUMENT + count - 1)
    if stop is None:
        raise TemplateRefused("it does not show calls, or does not end them with a special token")
    if any(not any(getattr(piece, "number", None) == RESULT + number for piece in rest) for number in range(count)):
        raise TemplateRefused("it does not show tool results")
    return stop, rest


def _call_format(template: ChatTemplate, stop: str) -> str:
    """Name of the format whose parser returns the calls that the template writes."""
    asked = "Amber Stone"
    messages = [_ASKED, call_message([("lookup", asked)]), tool_message(0, "lookup", slot(RESULT))]
    text = template.render(messages, [PROBE_TOOL], generate=True)
    place = text.rindex(asked)
    written = template.after_last_special(text[:place]) + text[place:].partition(stop)[0]
    expected = (Action("lookup", f'{{"{ARGUMENT_NAME}": "{asked}"}}'),)
    for name, parse in TOOL_PARSERS.items():
        turn = parse(written, ())
        if isinstance(turn, ActionTurn) and turn.calls == expected:
            return name
    raise TemplateRefused(f"it writes calls in a format that no parser supports: {written[-120:]!r}")


def _generation_prompt(template: ChatTemplate) -> str:
    return template.render([_ASKED], (), generate=True).rpartition(slot(QUESTION))[2]


def _opens_thought(template: ChatTemplate) -> bool:
    begun = _generation_prompt(template)
    return "<think>" in begun and "</think>" not in begun


def _thoughts(template: ChatTemplate) -> Thoughts:
    begun = _generation_prompt(template)

    def shows(**preamble: str) -> bool:
        messages = [_ASKED, call_message([("lookup", "a")], **preamble), tool_message(0, "lookup", "b")]
        try:
            return slot(WRITTEN) in template.render(messages, (), generate=True)
        except TemplateRefused:
            return False

    if "</think>" not in begun:
        if shows(reasoning_content=slot(WRITTEN)):
            return "reasoning"
        if _opens_thought(template):
            return "tagged"
    return "spoken" if shows(content=slot(WRITTEN)) else "none"


def _allows_parallel_calls(template: ChatTemplate) -> bool:
    try:
        reply_markup(template, 2)
    except TemplateRefused:
        return False
    return True


def _answer_stop(template: ChatTemplate) -> str:
    """Token that ends an answer: right after it, or the one that starts the next message."""
    answer: Message = {"role": "assistant", "content": slot(WRITTEN)}
    for messages in ([_ASKED, answer], [_ASKED, answer, {"role": "user", "content": "a"}]):
        stop, _ = template.after_stop(template.pieces(messages, (), generate=False), WRITTEN)
        if stop is not None:
            return stop
    raise TemplateRefused("it does not end an answer with a special token")


def _correction(template: ChatTemplate) -> tuple[str, tuple[Piece, ...]]:
    """Role and markup of a message that corrects an action: `tool` if the template allows it, otherwise `user`."""
    for role in ("tool", "user"):
        correction: Message = {"role": role, "content": slot(RESULT)} if role == "user" else tool_message(0, "error", slot(RESULT))
        try:
            pieces = template.pieces([_ASKED, {"role": "assistant", "content": slot(WRITTEN)}, correction], (), generate=True)
        except TemplateRefused:
            continue
        stop, rest = template.after_stop(pieces, WRITTEN)
        if stop is not None and any(getattr(piece, "number", None) == RESULT for piece in rest):
            return role, rest
    raise TemplateRefused("it does not allow a correction after a message without a call")
