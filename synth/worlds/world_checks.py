"""Whether a proposed task of a written world holds: seen by playing it, in the environment that rollouts use.

A task is kept where its calls make exactly the changes that its goal makes, and nothing less does:

    the calls fit the tools' schemas, and none is refused
    the state after them is that after the goal's SQL, which the teacher wrote independently of them
    the arguments can be known: each text is in the question, in the tool's description, or in the result of an earlier call (where a
        call is left out, each number too: it may have been the one that shows an id)
    an answer is shown by the calls, and not by the question
    the untouched state earns nothing, nor do the calls without any one of them
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from eval.graders.state import REFERENCE, STATE, compare
from rl.envs.base import EnvironmentFault, Resources, ToolOutcome
from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import Statement, WorldDefinition, split_statements
from rl.envs.tool_world.environment import DEFINITION, create
from rl.renderers.base import Action
from rl.tools import ToolError, ToolFault, ToolMiss
from rl.tools.arguments import ArgumentsSchema
from synth.questions.text_comparison import mentions, plain
from synth.worlds.world_proposals import Flaw, ProposedCall, TaskProposal, WorldDefect
from warehouse.records import ANSWER, Task

MOST_CALLS = 8
"""Maximum calls in a task's solution."""


@dataclass(slots=True)
class _Played:
    """What each call showed, the changes after all of them, and the environment's reward."""

    outcomes: list[ToolOutcome | None] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    fault: str | None = None


def provenance_of(world: WorldDefinition, goal: dict[str, Any]) -> dict[str, Any]:
    """What a task says of its world and of the changes that it asks for."""
    named = {"domain": world.domain, DEFINITION: world.as_data, "digest": world.digest}
    return {"world": named, "verifier": "state", REFERENCE: goal}


@dataclass(frozen=True, slots=True)
class TaskProof:
    """Plays the proposals of one world."""

    world: WorldDefinition

    async def prove(self, proposal: TaskProposal) -> dict[str, Any] | Flaw:
        """The changes that a proposal asks for, or the first reason why it is no task of the world."""
        if flaw := self._flaw_in_calls(proposal) or _flaw_in_words(proposal):
            return flaw
        goal = self._goal(proposal)
        if isinstance(goal, Flaw):
            return goal
        played = await self._play(proposal, proposal.calls, goal)
        if flaw := self._flaw_in_run(proposal, played, goal):
            return flaw
        for left_out, calls in _left_out(proposal.calls):
            without = await self._play(proposal, calls, goal)
            if without.fault is None and without.reward == 1.0 and self._untold(proposal.question, calls, without, numbers=True) is None:
                return Flaw(WorldDefect.NEEDLESS_CALL, f"it is solved without {left_out}")
        return goal

    def _flaw_in_calls(self, proposal: TaskProposal) -> Flaw | None:
        if len(proposal.calls) > MOST_CALLS:
            return Flaw(WorldDefect.MALFORMED_TASK, f"it has {len(proposal.calls)} calls, and {MOST_CALLS} are the most")
        for call in proposal.calls:
            if call.tool not in self.world.tools:
                return Flaw(WorldDefect.UNKNOWN_TOOL, f"there is no tool {call.tool!r:.100}")
            try:
                ArgumentsSchema(self.world.tools[call.tool].json_schema, call.tool).check(call.arguments)
            except ToolError as error:
                return Flaw(WorldDefect.WRONG_ARGUMENTS, str(error))
        return None

    def _goal(self, proposal: TaskProposal) -> dict[str, Any] | Flaw:
        """The changes that the goal's SQL makes."""
        database = ToolDatabase(self.world)
        try:
            database.execute([Statement(sql=sql) for text in proposal.goal for sql in split_statements(text)], {})
            return database.changes()
        except (ToolError, ToolMiss, ToolFault, ValidationError) as error:
            return Flaw(WorldDefect.WRONG_GOAL, str(error))
        finally:
            database.close()

    async def _play(self, proposal: TaskProposal, calls: Sequence[ProposedCall], goal: dict[str, Any]) -> _Played:
        """Make calls in a fresh world and answer: with the proposed answer if they showed it, else with nothing."""
        answers = () if proposal.answer is None else (proposal.answer,)
        task = Task("proof", "tool_world", proposal.question, answers, provenance=provenance_of(self.world, goal))
        environment = create(Resources())
        played = _Played()
        try:
            await environment.reset(task, seed=0)
            for call in calls:
                step = await environment.step(Action(call.tool, json.dumps(call.arguments)))
                played.outcomes.append(step.tool_outcome)
                played.observations.append(step.observation)
            answer = proposal.answer if proposal.answer is not None and _shown(proposal.answer, played) else ""
            last = await environment.step(Action(ANSWER, answer))
        except EnvironmentFault as fault:
            played.fault = str(fault)
            return played
        finally:
            await environment.close()
        played.changes, played.reward = dict(last.info["figures"][STATE]), last.reward or 0.0
        return played

    def _flaw_in_run(self, proposal: TaskProposal, played: _Played, goal: dict[str, Any]) -> Flaw | None:
        if played.fault is not None:
            return Flaw(WorldDefect.TOOL_FAILED, played.fault)
        for call, outcome, shown in zip(proposal.calls, played.outcomes, played.observations, strict=True):
            if outcome is not ToolOutcome.OK:
                return Flaw(WorldDefect.CALL_REFUSED, f"{call.tool}: {shown}")
        if not goal and proposal.answer is None:
            return Flaw(WorldDefect.NOTHING_ASKED, "its goal changes nothing, and it has no answer")
        verdict = compare(goal, played.changes)
        if not verdict.reached or verdict.extra:
            differences = {"missing": verdict.missing, "other": verdict.wrong, "more": verdict.extra}
            named = "; ".join(f"{name} {', '.join(paths[:3])}" for name, paths in differences.items() if paths)
            return Flaw(WorldDefect.GOAL_NOT_REACHED, f"its calls do not make the changes of its goal: {named}")
        if untold := self._untold(proposal.question, proposal.calls, played):
            return Flaw(WorldDefect.NOT_TOLD, untold)
        if proposal.answer is not None and not _shown(proposal.answer, played):
            return Flaw(WorldDefect.ANSWER_NOT_SHOWN, f"no call shows {proposal.answer!r:.100}")
        return None

    def _untold(self, question: str, calls: Sequence[ProposedCall], played: _Played, numbers: bool = False) -> str | None:
        """The first argument that cannot be known by then: a text, or a number too, which a question may also put into words."""
        known = question
        for call, shown in zip(calls, played.observations, strict=True):
            tool = self.world.tools[call.tool]
            described = " ".join([tool.description, *(parameter.description for parameter in tool.parameters.values())])
            for value in call.arguments.values():
                is_number = numbers and isinstance(value, int | float) and not isinstance(value, bool)
                if (isinstance(value, str) or is_number) and plain(str(value)) and not mentions(f"{known}\n{described}", str(value)):
                    return f"{call.tool} is given {value!r:.100}, which neither the question nor an earlier call says"
            known = f"{known}\n{shown}"
        return None


def _left_out(calls: Sequence[ProposedCall]) -> Iterator[tuple[str, Sequence[ProposedCall]]]:
    """No calls at all, and then all but one, each with what is left out."""
    yield "any call", ()
    for place, call in enumerate(calls):
        yield f"call {place + 1}, of {call.tool}", (*calls[:place], *calls[place + 1 :])


def _flaw_in_words(proposal: TaskProposal) -> Flaw | None:
    if not proposal.goal and proposal.answer is None:
        return Flaw(WorldDefect.NOTHING_ASKED, "it has neither goal nor answer")
    if proposal.answer is not None and (not plain(proposal.answer) or mentions(proposal.question, proposal.answer)):
        return Flaw(WorldDefect.ANSWER_GIVEN, f"its question says {proposal.answer!r:.100}")
    return None


def _shown(answer: str, played: _Played) -> bool:
    return any(mentions(shown, answer) for shown in played.observations)
