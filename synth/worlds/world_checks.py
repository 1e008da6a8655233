"""Whether a proposed task of a written world holds: seen by playing it, in the environment that rollouts will have.

A task is kept where its calls make exactly the changes that its goal names, and nothing less does:

    the calls fit the tools' schemas, and none is refused
    the state by then is the goal's, and once more when it is played again
    whoever makes them can know what to give them: each text stands in the question, in the schema, or in what an earlier call showed
    an answer is shown by the calls, and not by the question
    nobody is paid for the untouched state, nor for the calls without any one of them

The goal is the teacher's own word beside the calls', so that each is a check of the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.graders.state import REFERENCE, STATE, compare
from rl.envs.base import EnvironmentFault, Resources, ToolOutcome
from rl.envs.tool_world.definition import WorldDefinition
from rl.envs.tool_world.environment import DEFINITION, ToolWorldOptions, create
from rl.envs.tool_world.limits import CodeLimits
from rl.renderers.base import Action
from rl.tools import ToolError
from rl.tools.arguments import ArgumentsSchema
from synth.questions.text_comparison import mentions, plain
from synth.worlds.world_proposals import Flaw, ProposedCall, TaskProposal, WorldDefect
from warehouse.records import ANSWER, Task


@dataclass(slots=True)
class Played:
    """What playing some calls came to: what each showed, the changes, and what the environment paid."""

    outcomes: list[ToolOutcome | None] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    fault: str | None = None


def provenance_of(world: WorldDefinition, goal: dict[str, Any]) -> dict[str, Any]:
    """What a task says of its world and of the changes that it asks for."""
    named = {"domain": world.domain, DEFINITION: world.as_data, "digest": world.digest}
    return {"world": named, "verifier": "state", REFERENCE: goal}


MOST_CALLS = 8
"""Maximum calls in a task's solution."""


def goal_of(proposal: TaskProposal, world: WorldDefinition) -> dict[str, Any]:
    """The changes that a proposal asks for, field by field, sorted by path.

    Raises:
        ValueError: it names what is not there; its text says what.
    """
    found: dict[str, Any] = {}
    for path, value in proposal.goal.items():
        table, _, rest = path.partition("/")
        key, _, name = rest.partition("/")
        if table not in world.tables or not key:
            raise ValueError(f"there is no table {table!r:.100} with a key in {path!r:.100}")
        fields = world.tables[table].fields
        if name:
            found[path] = value
        elif value is None:
            found.update({f"{path}/{each}": None for each in fields})
        elif isinstance(value, dict):
            found.update({f"{path}/{each}": given for each, given in value.items()})
        else:
            raise ValueError(f"{path!r:.100} is a record, and {value!r:.80} is none")
    for path, value in found.items():
        table, key, name = path.split("/", 2)
        if name not in world.tables[table].fields:
            raise ValueError(f"{table} has no field {name!r:.100}")
        if value is not None and not world.tables[table].fields[name].takes(value):
            raise ValueError(f"{path:.200} cannot be {value!r:.80}")
    return dict(sorted(found.items()))


def flaw_in_calls(proposal: TaskProposal, world: WorldDefinition) -> Flaw | None:
    """What is wrong with the calls, seen without making them."""
    if len(proposal.calls) > MOST_CALLS:
        return Flaw(WorldDefect.MALFORMED_TASK, f"it has {len(proposal.calls)} calls, and {MOST_CALLS} are the most")
    for call in proposal.calls:
        if call.tool not in world.tools:
            return Flaw(WorldDefect.UNKNOWN_TOOL, f"there is no tool {call.tool!r:.100}")
        try:
            ArgumentsSchema(world.tools[call.tool].json_schema, call.tool).check(call.arguments)
        except ToolError as error:
            return Flaw(WorldDefect.WRONG_ARGUMENTS, str(error)[:300])
    return None


@dataclass(frozen=True, slots=True)
class TaskProof:
    """Plays the proposals of one world."""

    world: WorldDefinition
    limits: CodeLimits

    async def flaw(self, proposal: TaskProposal) -> Flaw | None:
        """The first reason why a proposal is no task of the world; None where it is one."""
        try:
            goal = goal_of(proposal, self.world)
        except ValueError as error:
            return Flaw(WorldDefect.WRONG_GOAL, str(error))
        if flaw := flaw_in_calls(proposal, self.world) or _flaw_in_words(proposal):
            return flaw
        played = await self.play(proposal, proposal.calls, goal)
        if flaw := self._flaw_in_run(proposal, played, goal):
            return flaw
        for without, left in _left_out(proposal.calls):
            if await self._solved(proposal, left, goal):
                return Flaw(WorldDefect.NEEDLESS_CALL, f"it is solved without {without}")
        again = await self.play(proposal, proposal.calls, goal)
        if (again.changes, again.observations) != (played.changes, played.observations):
            return Flaw(WorldDefect.NOT_REPEATABLE, "played again, its calls come to something else")
        return None

    async def play(self, proposal: TaskProposal, calls: Sequence[ProposedCall], goal: dict[str, Any]) -> Played:
        """Make some calls in a fresh world and answer: with the proposed answer where they showed it, else with nothing."""
        answers = () if proposal.answer is None else (proposal.answer,)
        task = Task("proof", "tool_world", proposal.question, answers, provenance=provenance_of(self.world, goal))
        environment = create(Resources(options=ToolWorldOptions(code=self.limits).model_dump(exclude_none=True)))
        played = Played()
        try:
            await environment.reset(task, seed=0)
            for call in calls:
                step = await environment.step(Action(call.tool, json.dumps(call.arguments)))
                played.outcomes.append(step.tool_outcome)
                played.observations.append(step.observation)
            said = proposal.answer if proposal.answer is not None and _shown(proposal.answer, played) else ""
            last = await environment.step(Action(ANSWER, said))
        except EnvironmentFault as fault:
            played.fault = str(fault)
            return played
        finally:
            await environment.close()
        played.changes, played.reward = dict(last.info["figures"][STATE]), last.reward or 0.0
        return played

    async def _solved(self, proposal: TaskProposal, calls: Sequence[ProposedCall], goal: dict[str, Any]) -> bool:
        """Whether calls that somebody can know of come to what is asked for."""
        played = await self.play(proposal, calls, goal)
        return played.fault is None and played.reward == 1.0 and self._untold(proposal.question, calls, played) is None

    def _flaw_in_run(self, proposal: TaskProposal, played: Played, goal: dict[str, Any]) -> Flaw | None:
        if played.fault is not None:
            return Flaw(WorldDefect.TOOL_FAILED, played.fault[:500])
        for call, outcome, shown in zip(proposal.calls, played.outcomes, played.observations, strict=True):
            if outcome is not ToolOutcome.OK:
                return Flaw(WorldDefect.CALL_REFUSED, f"{call.tool}: {shown[:300]}")
        verdict = compare(goal, played.changes)
        if not verdict.reached or verdict.extra:
            told = ", ".join(f"{name} {', '.join(paths[:3])}" for name, paths in _named(verdict).items() if paths)
            return Flaw(WorldDefect.GOAL_NOT_REACHED, f"its calls do not make the changes that its goal names: {told}")
        if untold := self._untold(proposal.question, proposal.calls, played):
            return Flaw(WorldDefect.NOT_TOLD, untold)
        if proposal.answer is not None and not _shown(proposal.answer, played):
            return Flaw(WorldDefect.ANSWER_NOT_SHOWN, f"no call shows {proposal.answer!r:.100}")
        return None

    def _untold(self, question: str, calls: Sequence[ProposedCall], played: Played) -> str | None:
        """The first text that a call is given and that nobody could know by then."""
        known = question
        for call, shown in zip(calls, played.observations, strict=True):
            parameters = self.world.tools[call.tool].parameters
            for name, value in call.arguments.items():
                if isinstance(value, str) and plain(value) and not parameters[name].one_of and not mentions(known, value):
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
        return Flaw(WorldDefect.NOTHING_ASKED, "it changes nothing, and has no answer")
    if proposal.answer is not None and (not plain(proposal.answer) or mentions(proposal.question, proposal.answer)):
        return Flaw(WorldDefect.ANSWER_GIVEN, f"its question says {proposal.answer!r:.100}")
    return None


def _shown(answer: str, played: Played) -> bool:
    return any(mentions(shown, answer) for shown in played.observations)


def _named(verdict: Any) -> dict[str, tuple[str, ...]]:
    return {"missing": verdict.missing, "other": verdict.wrong, "beside it": verdict.extra}
