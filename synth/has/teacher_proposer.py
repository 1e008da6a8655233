"""A teacher that writes decisions: alternatives, asked for one at a time, and the action that was taken, written anew.

Whoever reads a decision must not tell the action that was taken by its style, so one writer writes all options of a step: in one form,
with one limit, at one temperature. The taken action comes first; it keeps its tool, and every word of its argument. Then one alternative
is asked for at a time, with those that are there already shown in random order. A reply that is no action, calls a tool that nobody has,
or says what is there already is a `Failure`, and another takes its place as long as the step has requests left.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from synth.has.decisions import Option, Step, describe, option, shortened
from synth.has.proposers import StepKey
from synth.parts import Called, calls_of
from synth.questions.text_comparison import numbers, plain
from synth.teachers.teacher import Reply, Teacher, read_json
from synth.teachers.worked_examples import BLANK, QUESTION
from warehouse.digests import seed_from
from warehouse.forms import form_of
from warehouse.records import Failure, Request, user

_SITUATION = """A task is being worked on with tools. Question: {question}

So far:
{history}

Tools: {tools}

"""
_TAKEN = """One action that could be taken now calls {tool} with: {argument}
Write that action. Keep every word of its argument, and add no name and no number to it."""
_ANOTHER = """Actions that are considered already:
{considered}

Write one other action that could be taken now."""
_FORM = """

Reply with one line of JSON and nothing else: why, in one short sentence, the name of the tool, and its argument.
{"think": "...", "tool": "...", "arguments": "..."}"""

_BEGUN = _SITUATION.format(question=QUESTION, history="nothing yet", tools="answer, search")
_TAKEN_EXAMPLES = (
    (
        _BEGUN + _TAKEN.format(tool="search", argument="author of Sootlantern") + _FORM,
        '{"think": "The author has to be known first.", "tool": "search", "arguments": "author of Sootlantern"}',
    ),
)
_OTHER_EXAMPLES = (
    (
        _BEGUN + _ANOTHER.format(considered="- The author has to be known first., search author of Sootlantern") + _FORM,
        '{"think": "The play may have a page of its own.", "tool": "search", "arguments": "Sootlantern play"}',
    ),
)


class ActionDefect(StrEnum):
    """Why a reply gives a step no option."""

    UNREADABLE = "proposal_unreadable"
    UNKNOWN_TOOL = "proposal_unknown_tool"
    REPEATED = "proposal_repeated"
    TAKEN_CHANGED = "proposal_taken_changed"
    WRONG_ARGUMENTS = "proposal_wrong_arguments"
    NOT_ONE_CALL = "proposal_not_one_call"


@dataclass(frozen=True, slots=True)
class WriterConfig:
    """How a teacher is asked.

    `max_tokens` bounds one action, `spare_requests` the requests of a step beyond one an option, and `max_response_characters` what is
    shown of each response.
    """

    max_tokens: int = 128
    temperature: float = 0.7
    spare_requests: int = 2
    max_response_characters: int = 2_000
    seed: int = 0


class WrittenAction(BaseModel):
    """An action as a teacher writes it."""

    think: str = ""
    tool: str = Field(min_length=1)
    arguments: Any = ""

    @property
    def call(self) -> Called:
        """The tool and its argument."""
        text = self.arguments.strip() if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)
        return self.tool.strip(), text

    @property
    def option(self) -> Option:
        """The action as an option."""
        return option(" ".join(self.think.split()) if plain(self.think) else "", self.call)


class _OnText(WrittenAction):
    """What a teacher is held to where the action that was taken has a text for an argument."""

    think: str
    arguments: str


class _OnObject(WrittenAction):
    """The same where it has an object."""

    think: str
    arguments: dict[str, Any]


_ACTION, _ON_TEXT, _ON_OBJECT = TypeAdapter(WrittenAction), TypeAdapter(_OnText), TypeAdapter(_OnObject)


@dataclass(slots=True)
class _Draft:
    """A step's options as far as they are written."""

    step: Step
    left: int
    """Requests that may still be made for it."""
    asked: int = 0
    taken: Option | None = None
    others: dict[str, Option] = field(default_factory=dict)


class TeacherProposer:
    """A teacher as the writer of decisions; `tools` are those that an action may call, by default those that the runs call."""

    def __init__(self, teacher: Teacher, config: WriterConfig | None = None, tools: Iterable[str] = ()) -> None:
        self._teacher, self._config = teacher, config or WriterConfig()
        self._tools = frozenset(tools)
        self._drafts: dict[StepKey, _Draft] = {}
        self._kinds: dict[str, set[str]] = {}
        """Of each tool that the runs call, what they give it."""

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        """Has all steps written; the failures are of requests without a reply and of replies that gave no option."""
        tools = sorted(self._tools | {tool for step in steps for tool, _ in calls_of(step.turn)})
        for tool, argument in (call for step in steps for call in calls_of(step.turn)):
            self._kinds.setdefault(tool, set()).add(_kind(argument))
        single = [step for step in steps if len(calls_of(step.turn)) == 1]
        failures = [_without_one_call(step) for step in steps if len(calls_of(step.turn)) != 1]
        drafts = [_Draft(step, 1 + count + self._config.spare_requests) for step in single]
        while asking := [draft for draft in drafts if draft.left and len(draft.others) < count]:
            replies = self._teacher.complete([self._request(draft, tools) for draft in asking])
            for draft, reply in zip(asking, replies, strict=True):
                failures += self._take(draft, reply, tools)
        self._drafts |= {draft.step.key: draft for draft in drafts}
        return failures

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        """The first `count` of what was written for `step`."""
        draft = self._drafts.get(step.key)
        return [] if draft is None else [found for action, found in draft.others.items() if action not in excluded][:count]

    def taken(self, step: Step) -> Option | None:
        """The action of `step`, in the teacher's words; its calls are those that were made."""
        draft = self._drafts.get(step.key)
        return None if draft is None else draft.taken

    def _request(self, draft: _Draft, tools: Sequence[str]) -> Request:
        step, config = draft.step, self._config
        lines = [
            line
            for turn in step.before
            for line in (describe(turn).text, f"-> {shortened(turn.observation, config.max_response_characters)}")
        ]
        situation = _SITUATION.format(question=step.question, history="\n".join(lines) or "nothing yet", tools=", ".join(tools))
        seed = seed_from("has teacher", config.seed, *step.key, draft.asked)
        draft.asked, draft.left = draft.asked + 1, draft.left - 1
        wanted, examples = (_taken(step), _TAKEN_EXAMPLES) if draft.taken is None else (_another(draft, seed), _OTHER_EXAMPLES)
        ((taken, argument),) = calls_of(step.turn)
        shape = _ON_OBJECT if _kind(argument) == "object" else _ON_TEXT
        text, form = situation + wanted + _FORM, form_of(shape, tool=(taken,) if draft.taken is None else tuple(tools))
        return user(text, max_tokens=config.max_tokens, temperature=config.temperature, seed=seed, form=form, examples=examples)

    def _take(self, draft: _Draft, reply: Reply, tools: Collection[str]) -> list[Failure]:
        """Add what a reply brought to the draft, or say why it brought nothing."""
        if isinstance(reply, Failure):
            return [reply]
        written = read_json(reply, _ACTION)
        if isinstance(written, Failure):
            return [_failure(ActionDefect.UNREADABLE, f"what the teacher wrote is no action: {written.reason}", draft, reply.text)]
        if BLANK in (written.think.strip(), written.call[1]):
            return [_failure(ActionDefect.UNREADABLE, "what the teacher wrote is the form itself", draft, reply.text)]
        ((tool, argument),) = calls_of(draft.step.turn)
        if draft.taken is None:
            if not same_call((tool, argument), written.call) or _outgrown(argument, written.call[1]):
                return [_failure(ActionDefect.TAKEN_CHANGED, "the action that was taken became another", draft, reply.text)]
            draft.taken = Option(written.option.text, ((tool, argument),))
        elif written.call[0] not in tools:
            return [_failure(ActionDefect.UNKNOWN_TOOL, f"there is no tool {written.call[0]!r}", draft, reply.text)]
        elif (kind := _kind(written.call[1])) not in self._kinds.get(written.call[0], {kind}):
            return [_failure(ActionDefect.WRONG_ARGUMENTS, f"{written.call[0]} takes another kind of argument", draft, reply.text)]
        elif any(_alike(written.call, known) for known in ((tool, argument), *(found.calls[0] for found in draft.others.values()))):
            return [_failure(ActionDefect.REPEATED, "the action is there already", draft, reply.text)]
        else:
            draft.others[written.option.action] = written.option
        return []


def same_call(one: Called, other: Called) -> bool:
    """Whether two calls do the same, whoever wrote them: `other` may say more words than `one`, but no number more.

    Arguments as JSON are compared by their values.
    """
    if plain(one[0]) != plain(other[0]):
        return False
    values = [_json(argument) for _, argument in (one, other)]
    if values[0] is not None or values[1] is not None:
        return values[0] == values[1]
    words, others = set(plain(one[1]).split()), set(plain(other[1]).split())
    if not words:
        return one[1].strip() == other[1].strip()
    return words <= others and numbers(other[1]) <= numbers(one[1])


def _alike(one: Called, other: Called) -> bool:
    return same_call(one, other) or same_call(other, one)


def _outgrown(argument: str, written: str) -> bool:
    """Whether an argument that was written anew is another by its length alone: more than twice the words, and five."""
    return len(plain(written).split()) > 2 * len(plain(argument).split()) + 5


def _kind(argument: str) -> str:
    """What an argument is: an object, a text, or nothing that has a word."""
    return "object" if isinstance(_json(argument), dict) else "text" if plain(argument) else "nothing"


def _json(argument: str) -> Any:
    """The object or list that an argument is; None for text."""
    if not argument.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(argument)
    except (ValueError, RecursionError):
        return None


def _taken(step: Step) -> str:
    ((tool, argument),) = calls_of(step.turn)
    return _TAKEN.format(tool=tool, argument=argument)


def _another(draft: _Draft, seed: int) -> str:
    known = [found.text for found in (draft.taken, *draft.others.values()) if found is not None]
    random.Random(seed).shuffle(known)
    return _ANOTHER.format(considered="\n".join(f"- {text}" for text in known))


def _failure(defect: ActionDefect, reason: str, draft: _Draft, text: str) -> Failure:
    return Failure("synth", defect, reason, {"step": draft.step.key, "request": draft.asked, "text": text})


def _without_one_call(step: Step) -> Failure:
    reason = f"an action of {len(calls_of(step.turn))} calls cannot be written anew as one"
    return Failure("synth", ActionDefect.NOT_ONE_CALL, reason, {"step": step.key})
