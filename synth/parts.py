"""Parts of training examples: question, thoughts, calls, results and available tools.

Parts are built directly or parsed from a stored run's turns in any policy format: our tag dialect, `<think>` or plain text before a chat
template's call, or ReAct's `Thought:` and `Action:` lines.
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
"""Tool name and argument."""
CPT_KINDS = ("document", "fas_plan", "fas_reason", "has", "has_contrast")
SFT_KINDS = ("trajectory",)
_TAG = re.compile(r"</?(?:question|think|search|information|answer|code)>|<\|(?:pad|end)\|>")
_REACT = re.compile(r"\s*Thought:(.*?)(?:^Action:.*|\Z)", re.DOTALL | re.MULTILINE)


def asked(question: str) -> Parts:
    return (Part(PartKind.QUESTION, question),)


def acted(tool: str, argument: str, think: str = "", learnt: bool = True) -> Parts:
    """One action: an optional thought, then a call or the answer."""
    call = Part(PartKind.ANSWER, argument, learnt) if tool == ANSWER else Part(PartKind.CALL, argument, learnt, tool)
    return (*considered(think, learnt), call)


def considered(think: str, learnt: bool = True) -> Parts:
    return (Part(PartKind.THOUGHT, think, learnt),) if think else ()


def came(text: str) -> Parts:
    return (Part(PartKind.RESULT, text),)


def identity(*about: str, parts: Parts, by_mask: bool = False) -> str:
    """Digest of an example's text and `about`; `by_mask` includes the loss mask."""
    said = [(tagged_text(own), learnt) for learnt, own in groupby(parts, key=lambda part: part.learnt)] if by_mask else tagged_text(parts)
    return digest([*about, said] if about else said)


def offer(example: Example, tools: Sequence[Schema]) -> Example:
    """Add the available tools to `example`; unchanged if there are none, it has no question, or it already lists tools."""
    if not tools or not example.questions or example.parts[0].kind is PartKind.TOOLS:
        return example
    return replace(example, parts=(Part(PartKind.TOOLS, json.dumps(list(tools), ensure_ascii=False)), *example.parts))


def of_turn(turn: Turn, learnt: bool = True, responses: bool = True) -> Parts:
    """Thought, executed calls and (with `responses`) results of a turn. An unparsable action becomes a thought without loss."""
    parts = considered(thought_of(turn.action), learnt)
    for tool, argument in calls_of(turn):
        parts += acted(tool, argument, learnt=learnt)
    parts = parts or (Part(PartKind.THOUGHT, untagged(turn.action)),)
    for response in responses_of(turn) if responses else ():
        parts += came(response)
    return parts


def calls_of(turn: Turn) -> list[Called]:
    """Executed calls of a turn; at most one if the turn was recorded without a call list."""
    if turn.calls:
        return [(call.tool, call.arguments or "") for call in turn.calls if call.outcome != NOT_RUN]
    return [] if turn.tool is None else [(turn.tool, turn.arguments or "")]


def thought_of(action: str) -> str:
    """Thought before the call, or ""."""
    spoken, called, _ = action.partition("<tool_call>")
    thought, rest = split_reasoning(spoken if called and split_reasoning(spoken) == ("", spoken.strip()) else action)
    if thought and rest:  # an unclosed block is not a thought
        return untagged(thought)
    if called:
        return untagged(rest.partition("<tool_call>")[0])
    react = _REACT.match(action)
    return react[1].strip() if react is not None else ""


def responses_of(turn: Turn) -> list[str]:
    """Result of each executed call, or the observation shown to the policy if no result was recorded."""
    if not turn.observation:
        return []
    given = [call.observation.strip() for call in turn.calls if call.outcome != NOT_RUN]
    return given if any(given) else [untagged(turn.observation)]


def untagged(text: str) -> str:
    """Strip the `tags` dialect's markup and surrounding whitespace."""
    return _TAG.sub("", text).strip()
