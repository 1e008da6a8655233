"""What a chat template does around calls and results, found out at start-up by rendering conversations with words in the slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl.dialect import Action, ActionTurn, Schema
from rl.dialects.calls import READERS, Reader
from rl.dialects.templates import ChatTemplate, Filter, Message, Piece, TemplateRefused, slot

QUESTION, WRITTEN, NAME, ARGUMENT, RESULT = 0, 1, 1_000, 2_000, 3_000
"""Numbers of the slots; the last three are the first of as many as there are calls."""
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


@dataclass(frozen=True, slots=True)
class Layout:
    """How one template speaks: the form of its calls, the tokens that end messages, what it does to texts, how it takes a correction."""

    form: str
    several: bool
    call_stop: str
    answer_stop: str
    question: Filter
    result: Filter
    correction_role: str
    correction: tuple[Piece, ...]

    @property
    def reader(self) -> Reader:
        """What reads its calls."""
        return READERS[self.form]


def find_layout(template: ChatTemplate) -> Layout:
    """The layout of `template`.

    Raises:
        TemplateRefused: where it shows no tools, no calls or no results, or writes calls in a form that no reader knows.
    """
    shown = template.render([_ASKED], [PROBE_TOOL], generate=True)
    if "lookup" not in shown:
        raise TemplateRefused("it does not show the policy what tools there are")
    call_stop, _ = replies(template, 1)
    answer_stop = _answer_stop(template)
    role, correction = _correction(template)
    return Layout(
        form=_form(template, call_stop),
        several=_takes_several(template),
        call_stop=call_stop,
        answer_stop=answer_stop,
        question=template.filter_of([], "user"),
        result=template.filter_of([_ASKED, calling([("lookup", "a")])], "tool"),
        correction_role=role,
        correction=correction,
    )


def calling(calls: Sequence[tuple[str, str]], **said: str) -> Message:
    """An assistant's message with calls, each a tool and its one argument; `said` is its content, or whatever else stands before them."""
    asked: list[dict[str, Any]] = [
        {"id": _call_id(number), "type": "function", "function": {"name": name, "arguments": {ARGUMENT_NAME: argument}}}
        for number, (name, argument) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", **said, "tool_calls": asked}


def returned(number: int, name: str, content: str) -> Message:
    """The message of a tool, in answer to call `number`."""
    return {"role": "tool", "tool_call_id": _call_id(number), "name": name, "content": content}


def replies(template: ChatTemplate, count: int) -> tuple[str, tuple[Piece, ...]]:
    """What ends a message of `count` calls, and what the template writes behind it, up to where the assistant speaks again."""
    asked = calling([(slot(NAME + number), slot(ARGUMENT + number)) for number in range(count)])
    results = [returned(number, slot(NAME + number), slot(RESULT + number)) for number in range(count)]
    pieces = template.pieces([_ASKED, asked, *results], (), generate=True)
    stop, rest = template.after_stop(pieces, ARGUMENT + count - 1)
    if stop is None:
        raise TemplateRefused("it does not show calls, or ends them with no token of their own")
    if any(not any(getattr(piece, "number", None) == RESULT + number for piece in rest) for number in range(count)):
        raise TemplateRefused("it does not show what tools return")
    return stop, rest


def _form(template: ChatTemplate, stop: str) -> str:
    """The form whose reader gives back the calls that the template writes."""
    asked = "Amber Stone"
    messages = [_ASKED, calling([("lookup", asked)]), returned(0, "lookup", slot(RESULT))]
    text = template.render(messages, [PROBE_TOOL], generate=True)
    place = text.rindex(asked)
    written = template.behind_special(text[:place]) + text[place:].partition(stop)[0]
    expected = (Action("lookup", f'{{"{ARGUMENT_NAME}": "{asked}"}}'),)
    for name, reader in READERS.items():
        turn = reader(written)
        if isinstance(turn, ActionTurn) and turn.calls == expected:
            return name
    raise TemplateRefused(f"it writes calls in a form that no reader knows: {written[-120:]!r}")


def _takes_several(template: ChatTemplate) -> bool:
    try:
        replies(template, 2)
    except TemplateRefused:
        return False
    return True


def _answer_stop(template: ChatTemplate) -> str:
    """What ends an answer: where nothing follows it, else what the next message begins with."""
    answer: Message = {"role": "assistant", "content": slot(WRITTEN)}
    for messages in ([_ASKED, answer], [_ASKED, answer, {"role": "user", "content": "a"}]):
        stop, _ = template.after_stop(template.pieces(messages, (), generate=False), WRITTEN)
        if stop is not None:
            return stop
    raise TemplateRefused("it ends an answer with no token of its own")


def _correction(template: ChatTemplate) -> tuple[str, tuple[Piece, ...]]:
    """How the policy is told that its message cannot be read: by a tool where the template takes that, else by the user."""
    for role in ("tool", "user"):
        told: Message = {"role": role, "content": slot(RESULT)} if role == "user" else returned(0, "error", slot(RESULT))
        try:
            pieces = template.pieces([_ASKED, {"role": "assistant", "content": slot(WRITTEN)}, told], (), generate=True)
        except TemplateRefused:
            continue
        stop, rest = template.after_stop(pieces, WRITTEN)
        if stop is not None and any(getattr(piece, "number", None) == RESULT for piece in rest):
            return role, rest
    raise TemplateRefused("it takes no correction behind a message without a call")


def _call_id(number: int) -> str:
    return f"call{number:05d}"
