"""The Expander: a teacher in the agent loop that makes questions over an open corpus deeper (WebShaper, arXiv 2507.15061, section 4.2).

Layer by layer every constant of a question gives way to a description that the teacher finds by searching: the answer never changes. All
constants of a layer give way together, for one that stayed would be a shortcut past the others; a layer that cannot be completed leaves
the question as it was. The loop, its limits and its outcomes are those of `rl`; a fault of the teacher or a tool makes an expansion invalid,
and it is no proposal that was refused. What it did is kept as trajectories, what it made as tasks, what was refused as failures.
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
from synth.corpora.expansion_proofs import KnownFacts, proofs_of
from synth.corpora.proposals import (
    LeafExpansion,
    Objection,
    Proposal,
    ProposalDefect,
    expanded_task,
    is_replaceable,
    leaves_of,
    merge_objection,
    objection_to,
)
from synth.corpora.tools import TOOLS, ExpanderEnvironment, validate_description
from synth.graph.knowledge_graph import KnowledgeGraph
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
    tasks: Sequence[Task],
    teacher: Teacher,
    index: SearchIndex,
    config: ExpanderConfig,
    seed: int,
    wheel_turn: int = 1,
    graph: KnowledgeGraph | None = None,
) -> Expansion:
    """Expand each of `tasks`, which have formulas with constants that their questions name.

    A task that a later layer fails to expand stays as the earlier layers made it. `graph` proves what it can of what is made.

    Raises:
        RequestError: where no request to the teacher can succeed.
    """
    result, current, made = Expansion(), list(tasks), dict[int, Task]()
    known = None if graph is None else KnownFacts(graph)
    for layer in range(1, config.layers + 1):
        outcomes = asyncio.run(_expand_layer(current, teacher, index, config, seed_from(seed, layer), wheel_turn, known))
        for place, (before, outcome) in enumerate(zip(current, outcomes, strict=True)):
            result.trajectories += outcome.trajectories
            result.failures += outcome.failures
            if outcome.task is not None:
                made[place] = outcome.task
            current[place] = outcome.task or before
    result.tasks = [made[place] for place in sorted(made)]
    return result


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one layer of one task came to."""

    task: Task | None
    trajectories: tuple[Trajectory, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tried:
    """The runs that looked for a description of one constant, and what the last of them came to."""

    found: LeafExpansion | None
    trajectories: tuple[Trajectory, ...]
    failures: tuple[Failure, ...]


async def _expand_layer(
    tasks: Sequence[Task],
    teacher: Teacher,
    index: SearchIndex,
    config: ExpanderConfig,
    seed: int,
    wheel_turn: int,
    known: KnownFacts | None,
) -> list[_Outcome]:
    with ThreadPoolExecutor(config.concurrency) as threads:
        work = _Work(teacher, index, config, seed, wheel_turn, threads, asyncio.Semaphore(config.concurrency), known)
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
    known: KnownFacts | None

    async def expand(self, task: Task) -> _Outcome:
        """One layer of one task."""
        names = leaves_of(task)
        if self.config.structure == "sequential":
            names = [name for name in names if is_replaceable(task, name)][:1]
        if not names or not all(is_replaceable(task, name) for name in names):
            stays = next((name for name in names if not is_replaceable(task, name)), None)
            reason = "the formula has no constant" if stays is None else f"{stays!r} is no constant of one member that the question names"
            return _Outcome(None, failures=(Failure(STAGE, ProposalDefect.NO_CONSTANT, reason, {"task": task.key}),))
        tried = await asyncio.gather(*(self._describe(task, name) for name in names))
        trajectories = tuple(trajectory for each in tried for trajectory in each.trajectories)
        failures = tuple(failure for each in tried for failure in each.failures)
        leaves = [each.found for each in tried if each.found is not None]
        if len(leaves) < len(names):
            missing = [name for name, each in zip(names, tried, strict=True) if each.found is None]
            reason = f"{len(missing)} of {len(names)} constants have no description, and those that have would be shortcuts beside them"
            item = {"task": task.key, "missing": missing, "described": [leaf.name for leaf in leaves]}
            return _Outcome(None, trajectories, (*failures, Failure(STAGE, ProposalDefect.LAYER_INCOMPLETE, reason, item)))
        made = await asyncio.get_running_loop().run_in_executor(self.threads, self._merge, task, leaves)
        if isinstance(made, Objection):
            item = {"task": task.key, "descriptions": {leaf.name: leaf.proposal.description for leaf in leaves}}
            return _Outcome(None, trajectories, (*failures, Failure(STAGE, made.kind, made.reason, item)))
        return _Outcome(made, trajectories, failures)

    async def _describe(self, task: Task, name: str) -> _Tried:
        """A description of one constant, in as many runs as it may take."""
        trajectories, failures = list[Trajectory](), list[Failure]()
        for attempt in range(self.config.attempts):
            async with self.places:
                trajectory = await self._search(task, name, attempt)
                if trajectory.outcome is Outcome.INVALID:
                    item = {"task": task.key, "constant": name, "trajectory": trajectory.id}
                    found: LeafExpansion | Failure = Failure(STAGE, "invalid", trajectory.error or "a fault", item)
                else:
                    found = await asyncio.get_running_loop().run_in_executor(self.threads, self._judge, task, name, trajectory)
                    trajectory = replace(trajectory, outcome=Outcome.FAILURE if isinstance(found, Failure) else Outcome.SUCCESS)
            trajectories.append(trajectory)
            if not isinstance(found, Failure):
                return _Tried(found, tuple(trajectories), tuple(failures))
            failures.append(found)
            if trajectory.outcome is Outcome.INVALID:
                break
        return _Tried(None, tuple(trajectories), tuple(failures))

    async def _search(self, task: Task, name: str, attempt: int) -> Trajectory:
        """The teacher's run."""
        key = digest([STAGE, self.teacher.name, task.key, name, self.seed, attempt])
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

    def _judge(self, task: Task, name: str, trajectory: Trajectory) -> LeafExpansion | Failure:
        """The description that a run found, or why it is none."""
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
        return LeafExpansion(name, proposal, verdict)

    def _merge(self, task: Task, leaves: Sequence[LeafExpansion]) -> Task | Objection:
        """The task with all its leaves expanded, or what speaks against it."""
        objection = merge_objection(task, leaves)
        if objection is not None:
            return objection
        proofs = proofs_of(task, leaves, self.index, self.known)
        return proofs if isinstance(proofs, Objection) else expanded_task(task, leaves, proofs, self.teacher.name)

    def _failure(self, objection: Objection, task: Task, name: str, trajectory: Trajectory) -> Failure:
        item = {"task": task.key, "constant": name, "trajectory": trajectory.id, "text": trajectory.answer}
        return Failure(STAGE, objection.kind, objection.reason, item)
