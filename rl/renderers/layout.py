"""What a chat template writes around calls and results, discovered at start-up by rendering conversations with slot words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rl.renderers.base import Action, ActionTurn, Schema
from rl.renderers.chat_template import ChatTemplate, Filter, Message, Piece, TemplateRefused, slot
from rl.renderers.tool_parsers import TOOL_PARSERS, ToolParser

QUESTION, WRITTEN, NAME, ARGUMENT, RESULT = 0, 1, 1_000, 2_000, 3_000
"""Slot numbers; the last three are the first of one per call."""
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
"""As `reasoning_content`, in `<think>` within the content, as the content, or nowhere."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What one template does: call format, stop tokens, text filters, markup of a correction.

    `thoughts` says where a thought goes before a call, `opens_thought` whether the generation prompt already opened one.
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
    """The layout of `template`.

    Raises:
        TemplateRefused: it shows no tools, calls or results, or no parser knows its call format.
    """
    shown = template.render([_ASKED], [PROBE_TOOL], generate=True)
    if "lookup" not in shown:
        raise TemplateRefused("it does not show the policy what tools there are")
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
    """A call in OpenAI's form."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call_message(calls: Sequence[tuple[str, str]], **preamble: str) -> Message:
    """An assistant message with one-argument calls; `preamble` is its content, or a thought."""
    tool_calls = [tool_call(call_id(number), name, {ARGUMENT_NAME: argument}) for number, (name, argument) in enumerate(calls)]
    return {"role": "assistant", "content": "", **preamble, "tool_calls": tool_calls}


def assistant_message(calls: Sequence[tuple[str, dict[str, Any]]], answer: str | None, thought: str | None, thoughts: Thoughts) -> Message:
    """An assistant message with calls or an answer, after a thought if `thoughts` has a place for it."""
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
    """A tool's message in reply to call `number`."""
    return {"role": "tool", "tool_call_id": call_id(number), "name": name, "content": content}


def reply_markup(template: ChatTemplate, count: int) -> tuple[str, tuple[Piece, ...]]:
    """The token that ends a message of `count` calls, and the markup of their results up to the next generation prompt."""
    asked = call_message([(slot(NAME + number), slot(ARGUMENT + number)) for number in range(count)])
    results = [tool_message(number, slot(NAME + number), slot(RESULT + number)) for number in range(count)]
    pieces = template.pieces([_ASKED, asked, *results], (), generate=True)
    stop, rest = template.after_stop(pieces, ARGUMENT + count - 1)
    if stop is None:
        raise TemplateRefused("it does not show calls, or ends them with no token of their own")
    if any(not any(getattr(piece, "number", None) == RESULT + number for piece in rest) for number in range(count)):
        raise TemplateRefused("it does not show what tools return")
    return stop, rest


def _call_format(template: ChatTemplate, stop: str) -> str:
    """The format whose parser returns the calls that the template writes."""
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
    raise TemplateRefused(f"it writes calls in a format that no parser knows: {written[-120:]!r}")


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
    """The token that ends an answer: right after it, or the one that starts the next message."""
    answer: Message = {"role": "assistant", "content": slot(WRITTEN)}
    for messages in ([_ASKED, answer], [_ASKED, answer, {"role": "user", "content": "a"}]):
        stop, _ = template.after_stop(template.pieces(messages, (), generate=False), WRITTEN)
        if stop is not None:
            return stop
    raise TemplateRefused("it ends an answer with no token of its own")


def _correction(template: ChatTemplate) -> tuple[str, tuple[Piece, ...]]:
    """Role and markup of a message that corrects an action: a tool's if the template allows it, otherwise the user's."""
    for role in ("tool", "user"):
        correction: Message = {"role": role, "content": slot(RESULT)} if role == "user" else tool_message(0, "error", slot(RESULT))
        try:
            pieces = template.pieces([_ASKED, {"role": "assistant", "content": slot(WRITTEN)}, correction], (), generate=True)
        except TemplateRefused:
            continue
        stop, rest = template.after_stop(pieces, WRITTEN)
        if stop is not None and any(getattr(piece, "number", None) == RESULT for piece in rest):
            return role, rest
    raise TemplateRefused("it takes no correction behind a message without a call")
