"""The parts of training examples: question, thoughts, calls, results, and the tools on offer.

They are written from scratch, or read from the turns of a stored run in whatever format its policy used: the tags of our dialect, `<think>`
or plain text before a call of a chat template, or ReAct's `Thought:` and `Action:` lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from rl.renderers.base import Schema
from rl.renderers.tags import tagged_text
from warehouse.digests import digest
from warehouse.records import ANSWER, NOT_RUN, Example, Part, PartKind, Turn
from warehouse.replies import split_reasoning

Parts = tuple[Part, ...]
Called = tuple[str, str]
"""A tool and its argument."""
CPT_KINDS = ("document", "fas_plan", "fas_reason", "has", "has_contrast")
"""Kinds of examples for continual pre-training."""
SFT_KINDS = ("trajectory",)
"""Kinds of examples for supervised fine-tuning."""
_TAG = re.compile(r"</?(?:question|think|search|information|answer|code)>|<\|(?:pad|end)\|>")
_REACT = re.compile(r"\s*Thought:(.*?)(?:^Action:.*|\Z)", re.DOTALL | re.MULTILINE)


def asked(question: str) -> Parts:
    return (Part(PartKind.QUESTION, question),)


def acted(tool: str, argument: str, think: str = "", learnt: bool = True) -> Parts:
    """One action: a thought, if there is one, and a call or the answer."""
    call = Part(PartKind.ANSWER, argument, learnt) if tool == ANSWER else Part(PartKind.CALL, argument, learnt, tool)
    return (*considered(think, learnt), call)


def considered(think: str, learnt: bool = True) -> Parts:
    return (Part(PartKind.THOUGHT, think, learnt),) if think else ()


def came(text: str) -> Parts:
    return (Part(PartKind.RESULT, text),)


def identity(*about: str, parts: Parts, by_mask: bool = False) -> str:
    """Digest of an example's text and of what it is `about`; with `by_mask` also of which parts are learned."""
    said = [(tagged_text(own), learnt) for learnt, own in groupby(parts, key=lambda part: part.learnt)] if by_mask else tagged_text(parts)
    return digest([*about, said] if about else said)


def offer(example: Example, tools: Sequence[Schema]) -> Example:
    """`example` with the tools on offer, for dialects that show them; unchanged if it has no question."""
    if not tools or not example.questions or example.parts[0].kind is PartKind.TOOLS:
        return example
    return replace(example, parts=(Part(PartKind.TOOLS, json.dumps(list(tools), ensure_ascii=False)), *example.parts))


def of_turn(turn: Turn, learnt: bool = True, responses: bool = True) -> Parts:
    """The parts of a turn: thought, executed calls and, with `responses`, their results. An unreadable action is a masked thought."""
    parts = considered(thought_of(turn.action), learnt)
    for tool, argument in calls_of(turn):
        parts += acted(tool, argument, learnt=learnt)
    parts = parts or (Part(PartKind.THOUGHT, untagged(turn.action)),)
    for response in responses_of(turn) if responses else ():
        parts += came(response)
    return parts


def calls_of(turn: Turn) -> list[Called]:
    """The executed calls of a turn; at most one if it was recorded without its calls."""
    if turn.calls:
        return [(call.tool, call.arguments or "") for call in turn.calls if call.outcome != NOT_RUN]
    return [] if turn.tool is None else [(turn.tool, turn.arguments or "")]


def thought_of(action: str) -> str:
    """The policy's thought before its call, or ""."""
    spoken, called, _ = action.partition("<tool_call>")
    thought, rest = split_reasoning(spoken if called and split_reasoning(spoken) == ("", spoken.strip()) else action)
    if thought and rest:  # one that was never closed is no thought
        return untagged(thought)
    if called:
        return untagged(rest.partition("<tool_call>")[0])
    react = _REACT.match(action)
    return react[1].strip() if react is not None else ""


def responses_of(turn: Turn) -> list[str]:
    """The result of each executed call, as the tools gave it; else what the policy was shown, if anything."""
    if not turn.observation:
        return []
    given = [call.observation.strip() for call in turn.calls if call.outcome != NOT_RUN]
    return given if any(given) else [untagged(turn.observation)]


def untagged(text: str) -> str:
    """`text` without the tags of the dialect `tags`, stripped."""
    return _TAG.sub("", text).strip()
