"""The parts of training examples as synthesis writes them: a question, actions, what came of them, and the tools that were on offer.

They are written down from nothing, or read off the turns of a stored run, in whatever form its policy spoke: the tags of our dialect,
`<think>` or plain words before a call of a chat template, or the lines `Thought:` and `Action:` of ReAct.
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
"""The kinds of examples that continual pre-training reads."""
SFT_KINDS = ("trajectory",)
"""Those that supervised fine-tuning learns from."""
_TAG = re.compile(r"</?(?:question|think|search|information|answer|code)>|<\|(?:pad|end)\|>")
_REACT = re.compile(r"\s*Thought:(.*?)(?:^Action:.*|\Z)", re.DOTALL | re.MULTILINE)


def asked(question: str) -> Parts:
    """How an example of a trajectory begins."""
    return (Part(PartKind.QUESTION, question),)


def acted(tool: str, argument: str, think: str = "", learnt: bool = True) -> Parts:
    """One action: a thought, if there is one, and a call or the answer."""
    call = Part(PartKind.ANSWER, argument, learnt) if tool == ANSWER else Part(PartKind.CALL, argument, learnt, tool)
    return (*considered(think, learnt), call)


def considered(think: str, learnt: bool = True) -> Parts:
    """A thought, if there is one."""
    return (Part(PartKind.THOUGHT, think, learnt),) if think else ()


def came(text: str) -> Parts:
    """What a call gave."""
    return (Part(PartKind.RESULT, text),)


def identity(*about: str, parts: Parts, by_mask: bool = False) -> str:
    """The digest of what an example says, and of what it is `about`; with `by_mask` also of which of it is learnt."""
    said = [(tagged_text(own), learnt) for learnt, own in groupby(parts, key=lambda part: part.learnt)] if by_mask else tagged_text(parts)
    return digest([*about, said] if about else said)


def offer(example: Example, tools: Sequence[Schema]) -> Example:
    """`example` with the tools that its question was asked with, for dialects that show them; one without a question stays as it is."""
    if not tools or not example.questions or example.parts[0].kind is PartKind.TOOLS:
        return example
    return replace(example, parts=(Part(PartKind.TOOLS, json.dumps(list(tools), ensure_ascii=False)), *example.parts))


def of_turn(turn: Turn, learnt: bool = True, responses: bool = True) -> Parts:
    """A turn of a run: what was thought, the calls that were run, and what came of each, unless `responses` are left out.

    What could not be read is a thought that is not learnt.
    """
    parts = considered(thought_of(turn.action), learnt)
    for tool, argument in calls_of(turn):
        parts += acted(tool, argument, learnt=learnt)
    parts = parts or (Part(PartKind.THOUGHT, untagged(turn.action)),)
    for response in responses_of(turn) if responses else ():
        parts += came(response)
    return parts


def calls_of(turn: Turn) -> list[Called]:
    """The calls of a turn that were run; one that was recorded without its calls has at most the one that stands in the turn itself."""
    if turn.calls:
        return [(call.tool, call.arguments or "") for call in turn.calls if call.outcome != NOT_RUN]
    return [] if turn.tool is None else [(turn.tool, turn.arguments or "")]


def thought_of(action: str) -> str:
    """What the policy thought before its call, or nothing."""
    spoken, called, _ = action.partition("<tool_call>")
    thought, rest = split_reasoning(spoken if called and split_reasoning(spoken) == ("", spoken.strip()) else action)
    if thought and rest:  # one that was never closed is no thought
        return untagged(thought)
    if called:
        return untagged(rest.partition("<tool_call>")[0])
    react = _REACT.match(action)
    return react[1].strip() if react is not None else ""


def responses_of(turn: Turn) -> list[str]:
    """What came back from each call of a turn, as the tools gave it; where none was made, what the policy was shown; none at the end."""
    if not turn.observation:
        return []
    given = [call.observation.strip() for call in turn.calls if call.outcome != NOT_RUN]
    return given if any(given) else [untagged(turn.observation)]


def untagged(text: str) -> str:
    """`text` without the tags of the dialect `tags` and without the blanks around it."""
    return _TAG.sub("", text).strip()
