"""The Expander: a teacher in the agent loop that makes questions over an open corpus deeper (WebShaper, arXiv 2507.15061).

Layer by layer one constant of each question gives way to a description that the teacher finds by searching: the answer never changes.
The loop, its limits and its outcomes are those of `rl`; a fault of the teacher or a tool makes an expansion invalid, and it is no proposal
that was refused. What it did is kept as trajectories, what it made as tasks, what was refused as failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from rl.retrieval.search import SearchIndex
from rl.rollouts.agent_loop import AgentLoop
from rl.rollouts.base import RolloutRequest
from synth.corpora.config import ExpanderConfig
from synth.corpora.proposals import Objection, Proposal, ProposalDefect, expanded_task, objection_to, replaceable
from synth.corpora.tools import TOOLS, ExpanderEnvironment, validate_description
from synth.teachers.conversation import GuardedEnvironment, TeacherEngine, TextDialect, text_alone
from synth.teachers.teacher import Ending, Teacher, read_json
from warehouse.digests import digest, seed_from
from warehouse.records import Completion, Failure, Outcome, Task, Trajectory

STAGE = "expander"


@dataclass(slots=True)
class Expansion:
    """What an expansion of several questions came to; `tasks` are the deepest versions, of those that could be expanded at all."""

    tasks: list[Task] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


SYSTEM = """You make questions harder. In a question one name is to be replaced by a description that has this name as its only answer, \
found by searching a corpus. In each turn write <think>your thought</think> and then exactly one call:
<search>words</search> finds documents, each with its id.
<summarize>{"documents": ["id"], "goal": "what to look for"}</summarize> reads documents for you.
<validate>the description</validate> says whether the name is of the kind that is described, and whether it is too easy to guess.
<answer>{"description": "...", "facts": [{"subject": "...", "relation": "...", "object": "...", "quote": "...", "document": "id"}], \
"unknowns": ["..."]}</answer> ends the work.
The description is a noun phrase. It must not contain the name, the answer of the question, or any of the unknowns: entities that lie on \
the way. It names everything else that the facts are about. Each quote stands word for word in its document and names the fact's subject \
(unless that is the document's title) and object."""

_PROPOSAL = TypeAdapter(Proposal)


def expand(
    tasks: Sequence[Task], teacher: Teacher, index: SearchIndex, config: ExpanderConfig, seed: int, wheel_turn: int = 1
) -> Expansion:
    """Expand each of `tasks`, which have formulas with constants that their questions name.

    A task that a later layer fails to expand stays as the earlier layers made it.

    Raises:
        RequestError: where no request to the teacher can succeed.
    """
    result, current, made = Expansion(), list(tasks), {}
    for layer in range(1, config.layers + 1):
        outcomes = asyncio.run(_expand_layer(current, teacher, index, config, seed_from(seed, layer), wheel_turn))
        result.trajectories += [trajectory for _, trajectory, _ in outcomes if trajectory is not None]
        result.failures += [failure for _, _, failure in outcomes if failure is not None]
        for place, (before, (after, _, _)) in enumerate(zip(current, outcomes, strict=True)):
            if after is not None:
                made[place] = after
            current[place] = after or before
    result.tasks = [made[place] for place in sorted(made)]
    return result


_Outcome = tuple[Task | None, Trajectory | None, Failure | None]


async def _expand_layer(
    tasks: Sequence[Task], teacher: Teacher, index: SearchIndex, config: ExpanderConfig, seed: int, wheel_turn: int
) -> list[_Outcome]:
    with ThreadPoolExecutor(config.concurrency) as threads:
        work = _Work(teacher, index, config, seed, wheel_turn, threads, asyncio.Semaphore(config.concurrency))
        return list(await asyncio.gather(*(work.expand(task) for task in tasks)))


@dataclass(frozen=True, slots=True)
class _Work:
    teacher: Teacher
    index: SearchIndex
    config: ExpanderConfig
    seed: int
    wheel_turn: int
    threads: Executor
    places: asyncio.Semaphore

    async def expand(self, task: Task) -> _Outcome:
        """One constant of one task."""
        names = replaceable(task)
        if not names:
            reason = "the formula has no constant of one member that the question names"
            return None, None, Failure(STAGE, ProposalDefect.NO_CONSTANT, reason, {"task": task.key})
        async with self.places:
            trajectory = await self._search(task, names[0])
            if trajectory.outcome is Outcome.INVALID:
                item = {"task": task.key, "trajectory": trajectory.id}
                return None, trajectory, Failure(STAGE, "invalid", trajectory.error or "a fault", item)
            judge = asyncio.get_running_loop().run_in_executor
            made = await judge(self.threads, self._judge, task, names[0], trajectory)
        if isinstance(made, Failure):
            return None, replace(trajectory, outcome=Outcome.FAILURE), made
        return made, replace(trajectory, outcome=Outcome.SUCCESS), None

    async def _search(self, task: Task, name: str) -> Trajectory:
        """The teacher's run."""
        key = digest([STAGE, self.teacher.name, task.key, name, self.seed])
        goal = f"Question: {task.question}\nAnswer of the question: {'; '.join(task.answers)}\nName to replace: {name}"
        dialect = TextDialect(TOOLS)
        engine = TeacherEngine(self.teacher, dialect, SYSTEM, self.config.max_action_tokens, self.threads)
        environment = ExpanderEnvironment(self.index, self.teacher, self.config.documents, self.threads)
        request = RolloutRequest(
            trajectory_id=key,
            task=Task(key, STAGE, goal, (), provenance={"constant": name}),
            policy=self.teacher.name,
            horizon=self.config.horizon,
            seed=seed_from(self.seed, key),
            stage=STAGE,
            wheel_turn=self.wheel_turn,
        )
        return text_alone(await AgentLoop(engine, dialect, self.config.limits).run(request, GuardedEnvironment(environment)))

    def _judge(self, task: Task, name: str, trajectory: Trajectory) -> Task | Failure:
        """The expanded task, or why there is none."""
        if trajectory.answer is None:
            return self._failure(
                Objection(ProposalDefect.NO_PROPOSAL, f"it ended without one: {trajectory.stop_reason}"), task, name, trajectory
            )
        written = Completion(trajectory.id, self.teacher.name, {}, trajectory.answer, Ending.STOP, 0, 0)
        proposal = read_json(written, _PROPOSAL)
        if isinstance(proposal, Failure):
            return proposal
        objection = objection_to(proposal, task, name, {document.id: document for document in self.index.documents})
        if objection is not None:
            return self._failure(objection, task, name, trajectory)
        verdict = validate_description(self.teacher, name, proposal.description)
        if verdict.type_consistent is False:
            reason = f"{name!r} is not the kind of thing that is described"
            return self._failure(Objection(ProposalDefect.TYPE_INCONSISTENT, reason), task, name, trajectory)
        if verdict.too_simple:
            return self._failure(Objection(ProposalDefect.TOO_SIMPLE, f"without tools: {verdict.guess!r}"), task, name, trajectory)
        return expanded_task(proposal, task, name, verdict, self.index, self.teacher.name)

    def _failure(self, objection: Objection, task: Task, name: str, trajectory: Trajectory) -> Failure:
        item = {"task": task.key, "constant": name, "trajectory": trajectory.id, "text": trajectory.answer}
        return Failure(STAGE, objection.kind, objection.reason, item)
