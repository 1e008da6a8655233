"""Prove tasks of a written world by playing them in the environment of rollouts.

A task is kept if its calls reach its goal and nothing less does:

    no call is refused, and the final state is the goal
    all arguments can be known: each text is in the question, the tool's description, or the result of an earlier call (if a call is left
        out, each number too, since that call may have returned an id)
    the calls return the answer, and the question does not contain it
    neither the initial state nor the calls without any one of them earn a reward
"""

from __future__ import annotations

import json
import re
from calendar import month_name
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.graders.state import REFERENCE, STATE, compare
from rl.envs.base import EnvironmentFault, Resources, ToolOutcome
from rl.envs.tool_world.definition import Value, WorldDefinition
from rl.envs.tool_world.environment import DEFINITION, create
from rl.renderers.base import Action
from synth.questions.text_comparison import mentions, plain
from synth.worlds.solutions import Seen, WorldSolution
from synth.worlds.world_proposals import ASKS, WANTS, Flaw, WorldDefect
from warehouse.records import ANSWER, Task

MOST_WORDS = 70
"""Maximum words of a question."""
_OF_DATABASES = re.compile(r"\b[a-z]+_[a-z_]+\b|\b(?:rows?|tables?|columns?|database|records?)\b|[{}<>]", re.IGNORECASE)
"""Names of tools and columns, database terms, and placeholders."""
_OF_SERVICES = re.compile(r"\bclerk\b|\bthe (?:service|system|user)\b", re.IGNORECASE)
"""Terms that a person would not use for the other side."""
_SPOKEN = re.compile(rf"\?|\b(?:{ASKS}|{WANTS}|I would|I need|my)\b")
_DAY = re.compile(r"\d{4}-(\d{2})-(\d{2})")


def says(text: str, value: Value) -> bool:
    """Whether a text names a value; dates may be in words, such as January 6th."""
    if mentions(text, str(value)):
        return True
    if (day := _DAY.fullmatch(str(value))) is None or not 1 <= int(day[1]) <= 12:
        return False
    month, number = month_name[int(day[1])], rf"0?{int(day[2])}(?:st|nd|rd|th)?\b"
    named = rf"{month[:3]}(?:{month[3:]})?"
    return re.search(rf"\b(?:{named}\.? (?:the )?{number}|{number} (?:of )?{named}\b)", text, re.IGNORECASE) is not None


def word_of_databases(text: str, description: str) -> str | None:
    """First database term in a text that is not in the description; a restaurant has tables."""
    return next((found[0] for found in _OF_DATABASES.finditer(text) if not mentions(description, found[0])), None)


def flaw_in_words(question: str, solution: WorldSolution, description: str) -> Flaw | None:
    """Reason why a question does not fit this solution, as a message to its writer; None if it does."""
    missing = [str(value) for value in solution.told if not isinstance(value, bool) and not says(question, value)]
    if missing:
        return Flaw(WorldDefect.NOT_SAID, f"the question must hold, exactly as written: {'; '.join(dict.fromkeys(missing))}")
    told = " ".join(map(str, solution.told))
    for value in solution.hidden:
        if says(question, value) and not says(told, value):
            return Flaw(WorldDefect.GIVEN_AWAY, f"the question must not say {value}")
    if solution.answer is not None and (not plain(solution.answer) or mentions(question, solution.answer)):
        return Flaw(WorldDefect.GIVEN_AWAY, f"the question says its answer, {solution.answer}")
    if word := word_of_databases(question, description) or ((found := _OF_SERVICES.search(question)) and found[0]):
        return Flaw(WorldDefect.NOT_IN_WORDS, f"a person at the desk does not say {word}")
    if strange := {letter for letter in question if letter.isalpha() and not letter.isascii()} - set(told):
        return Flaw(WorldDefect.NOT_IN_WORDS, f"the letters {' '.join(sorted(strange))} are in none of the details")
    if invented := [number for number in re.findall(r"\d{3,}", question) if number not in told]:
        return Flaw(WorldDefect.NOT_IN_WORDS, f"no detail holds {', '.join(invented)}")
    if not _SPOKEN.search(question):
        return Flaw(WorldDefect.NOT_IN_WORDS, "it is not what the person says to the clerk: begin with Could you or I would like to")
    if len(question.split()) > MOST_WORDS:
        return Flaw(WorldDefect.NOT_IN_WORDS, f"the question has more than {MOST_WORDS} words")
    return None


def provenance_of(world: WorldDefinition, goal: dict[str, Any]) -> dict[str, Any]:
    named = {"domain": world.domain, DEFINITION: world.as_data, "digest": world.digest}
    return {"world": named, "verifier": "state", REFERENCE: goal}


@dataclass(slots=True)
class _Played:
    outcomes: list[ToolOutcome | None] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class TaskProof:
    world: WorldDefinition

    async def flaw(self, question: str, solution: WorldSolution) -> Flaw | None:
        """First reason why question and solution are no task of the world, or None."""
        played = await self._play(question, solution, solution.calls)
        if flaw := self._flaw_in_run(question, solution, played):
            return flaw
        for left_out, calls in _left_out(solution.calls):
            without = await self._play(question, solution, calls)
            if without.fault is None and without.reward == 1.0 and self._untold(question, calls, without, numbers=True) is None:
                return Flaw(WorldDefect.NEEDLESS_CALL, f"it is solved without {left_out}")
        return None

    async def _play(self, question: str, solution: WorldSolution, calls: Sequence[Seen]) -> _Played:
        """Make the calls in a fresh world and answer: correctly if they returned the answer, else with nothing."""
        answers = () if solution.answer is None else (solution.answer,)
        task = Task("proof", "tool_world", question, answers, provenance=provenance_of(self.world, dict(solution.wish.changes)))
        environment = create(Resources())
        played = _Played()
        try:
            await environment.reset(task, seed=0)
            for call in calls:
                step = await environment.step(Action(call.tool, json.dumps(call.arguments)))
                played.outcomes.append(step.tool_outcome)
                played.observations.append(step.observation)
            answer = solution.answer if solution.answer is not None and _shown(solution.answer, played) else ""
            last = await environment.step(Action(ANSWER, answer))
        except EnvironmentFault as fault:
            played.fault = str(fault)
            return played
        finally:
            await environment.close()
        played.changes, played.reward = dict(last.info["figures"][STATE]), last.reward or 0.0
        return played

    def _flaw_in_run(self, question: str, solution: WorldSolution, played: _Played) -> Flaw | None:
        if played.fault is not None:
            return Flaw(WorldDefect.TOOL_FAILED, played.fault)
        for call, outcome, shown in zip(solution.calls, played.outcomes, played.observations, strict=True):
            if outcome is not ToolOutcome.OK:
                return Flaw(WorldDefect.CALL_REFUSED, f"{call.tool}: {shown}")
        verdict = compare(solution.wish.changes, played.changes)
        if not verdict.reached or verdict.extra or played.reward != 1.0:
            return Flaw(WorldDefect.GOAL_NOT_REACHED, "its calls do not reach its goal, or change more than that")
        if untold := self._untold(question, solution.calls, played):
            return Flaw(WorldDefect.NOT_TOLD, untold)
        return None

    def _untold(self, question: str, calls: Sequence[Seen], played: _Played, numbers: bool = False) -> str | None:
        """First argument unknown at its call: a text or, with `numbers`, a number, which a question may also put into words."""
        known = question
        for call, shown in zip(calls, played.observations, strict=True):
            tool = self.world.tools[call.tool]
            described = " ".join([tool.description, *(parameter.description for parameter in tool.parameters.values())])
            for value in call.arguments.values():
                is_number = numbers and isinstance(value, int | float) and not isinstance(value, bool)
                if (isinstance(value, str) or is_number) and plain(str(value)) and not says(f"{known}\n{described}", value):
                    return f"{call.tool} is given {value!r:.100}, which neither the question nor an earlier call says"
            known = f"{known}\n{shown}"
        return None


def _left_out(calls: Sequence[Seen]) -> Iterator[tuple[str, Sequence[Seen]]]:
    yield "any call", ()
    for place, call in enumerate(calls):
        yield f"call {place + 1}, of {call.tool}", (*calls[:place], *calls[place + 1 :])


def _shown(answer: str, played: _Played) -> bool:
    return any(mentions(shown, answer) for shown in played.observations)
