"""The Expander: a teacher in the agent loop that makes questions over an open corpus deeper (WebShaper, arXiv 2507.15061).

Layer by layer every constant of a question gives way to a description that the teacher finds by searching: the answer never changes. All
constants of a layer give way together, for one that stayed would be a shortcut past the others; a layer that cannot be completed leaves
the question as it was. They are described one after the other, so that nothing is met twice and no more is asked of a layer that is lost.

The loop, its limits and its outcomes are those of `rl`; a fault of the teacher or a tool makes an expansion invalid, and it is no proposal
that was refused. What it did is kept as trajectories, what it made as tasks, what was refused as failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from rl.retrieval.search import SearchIndex
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from synth.corpora.config import SEARCH_DOCUMENTS, ExpanderConfig
from synth.corpora.expansion_proofs import KnownFacts, proofs_of
from synth.corpora.proposals import (
    Layer,
    LeafExpansion,
    Objection,
    Proposal,
    ProposalDefect,
    expanded_task,
    leaves_of,
    not_replaceable,
    objection_to,
    objection_to_merged,
)
from synth.corpora.tools import TOOLS, ExpanderEnvironment, facts_stated, validate_description
from synth.teachers.conversation import GuardedEnvironment, TeacherEngine, TextDialect, text_alone
from synth.teachers.teacher import Ending, Teacher, read_json
from warehouse.digests import digest, seed_from
from warehouse.records import Completion, Document, Failure, Outcome, Task, Trajectory

STAGE = "expander"
INVALID = "invalid"
"""The kind of a failure that is a fault of the teacher or a tool."""


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
The description is a noun phrase. It must not contain the name, the answer of the question, a name that is taken, or any of the unknowns: \
entities that lie on the way. It names everything else that the facts are about, and no fact is about what is taken. Each quote stands \
word for word in its document and names the fact's subject (unless that is the document's title) and object."""

_PROPOSAL = TypeAdapter(Proposal)
_MOST_TAKEN = 20
"""Names that the teacher is told are taken, at most; the checks know them all."""


def expand(
    tasks: Sequence[Task],
    teacher: Teacher,
    index: SearchIndex,
    config: ExpanderConfig,
    seed: int,
    wheel_turn: int = 1,
    known: KnownFacts | None = None,
) -> Expansion:
    """Expand each of `tasks`, which have formulas with constants that their questions name.

    A task that a later layer fails to expand stays as the earlier layers made it. What is `known` proves what it can of what is made.

    Raises:
        RequestError: where no request to the teacher can succeed.
    """
    result, current, made = Expansion(), list(tasks), dict[int, Task]()
    for layer in range(1, config.layers + 1):
        outcomes = asyncio.run(_expand_layer(current, teacher, index, config, seed_from(seed, layer), wheel_turn, known))
        for place, (before, outcome) in enumerate(zip(current, outcomes, strict=True)):
            result.trajectories += outcome.trajectories
            result.failures += [_about(tasks[place], failure) for failure in outcome.failures]
            if outcome.task is not None:
                made[place] = outcome.task
            current[place] = outcome.task or before
    result.tasks = [_made_from(tasks[place], made[place]) for place in sorted(made)]
    return result


def _made_from(task: Task, expanded: Task) -> Task:
    """The deepest version, made from `task`: the versions between are stored nowhere."""
    return replace(expanded, provenance={**expanded.provenance, "expanded_from": task.key})


def _about(task: Task, failure: Failure) -> Failure:
    """What failed, though at a deeper version, as a failure of `task`."""
    return replace(failure, item={**failure.item, "task": task.key})


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one layer of one task came to."""

    task: Task | None
    trajectories: tuple[Trajectory, ...] = ()
    failures: tuple[Failure, ...] = ()


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
        documents = {document.id: document for document in index.documents}
        work = _Work(teacher, index, documents, config, seed, wheel_turn, threads, asyncio.Semaphore(config.concurrency), known)
        return list(await asyncio.gather(*(work.expand(task) for task in tasks)))


@dataclass(frozen=True, slots=True)
class _Work:
    teacher: Teacher
    index: SearchIndex
    documents: Mapping[str, Document]
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
            names = [name for name in names if not not_replaceable(task, [name])][:1]
        if not names or (staying := not_replaceable(task, names)):
            reason = f"{staying[0]!r} is no constant of one member that the question names" if names else "no constant can give way"
            return _Outcome(None, failures=(Failure(STAGE, ProposalDefect.NO_CONSTANT, reason, {"task": task.key}),))
        async with self.places:
            return await self._expand(task, tuple(names))

    async def _expand(self, task: Task, names: tuple[str, ...]) -> _Outcome:
        """The task with all `names` described, or with none."""
        found, trajectories, failures = list[LeafExpansion](), list[Trajectory](), list[Failure]()
        for name in names:
            described = await self._describe(Layer(task, names, tuple(found)), name, trajectories, failures)
            if described is None:
                failures.append(_incomplete(task, name, names, found, trajectories[-1]))
                return _Outcome(None, tuple(trajectories), tuple(failures))
            found.append(described)
        made = await asyncio.get_running_loop().run_in_executor(self.threads, self._merge, task, found)
        if isinstance(made, Objection):
            item = {"task": task.key, "descriptions": {leaf.name: leaf.proposal.description for leaf in found}}
            return _Outcome(None, tuple(trajectories), (*failures, Failure(STAGE, made.kind, made.reason, item)))
        return _Outcome(made, tuple(trajectories), tuple(failures))

    async def _describe(self, layer: Layer, name: str, trajectories: list[Trajectory], failures: list[Failure]) -> LeafExpansion | None:
        """A description of one constant, in as many runs as it may take; what they were and what was refused is added to the lists."""
        for attempt in range(self.config.attempts):
            trajectory = await self._search(layer, name, attempt)
            if trajectory.outcome is Outcome.INVALID:
                trajectories.append(trajectory)
                failures.append(_refused(Objection(INVALID, trajectory.error or "a fault"), layer.task, name, trajectory))
                return None
            found = await asyncio.get_running_loop().run_in_executor(self.threads, self._judge, layer, name, trajectory)
            trajectories.append(replace(trajectory, outcome=Outcome.FAILURE if isinstance(found, Failure) else Outcome.SUCCESS))
            if isinstance(found, LeafExpansion):
                return found
            failures.append(found)
        return None

    async def _search(self, layer: Layer, name: str, attempt: int) -> Trajectory:
        """The teacher's run."""
        task = layer.task
        key = digest([STAGE, self.teacher.name, task.key, name, self.seed, attempt])
        goal = f"Question: {task.question}\nAnswer of the question: {'; '.join(task.answers)}\nName to replace: {name}"
        if taken := [text for text in layer.met(name) if text not in task.answers][:_MOST_TAKEN]:
            goal += f"\nTaken: {'; '.join(taken)}"
        dialect = TextDialect(TOOLS)
        engine = TeacherEngine(self.teacher, dialect, SYSTEM, self.config.max_action_tokens, self.threads)
        environment = ExpanderEnvironment(self.index, self.teacher, SEARCH_DOCUMENTS, self.threads)
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

    def _judge(self, layer: Layer, name: str, trajectory: Trajectory) -> LeafExpansion | Failure:
        """The description that a run found, or why it is none."""
        if trajectory.answer is None:
            return _refused(
                Objection(ProposalDefect.NO_PROPOSAL, f"it ended without one: {trajectory.stop_reason}"), layer.task, name, trajectory
            )
        written = Completion(trajectory.id, self.teacher.name, {}, trajectory.answer, Ending.STOP, 0, 0)
        proposal = read_json(written, _PROPOSAL)
        if isinstance(proposal, Failure):
            return _refused(Objection(proposal.kind, proposal.reason), layer.task, name, trajectory)
        objection = objection_to(proposal, layer, name, self.documents)
        judged = objection or self._validate(proposal, name)
        return _refused(judged, layer.task, name, trajectory) if isinstance(judged, Objection) else judged

    def _validate(self, proposal: Proposal, name: str) -> LeafExpansion | Objection:
        """What the teacher says of a description and its facts, where nothing can be shown to be wrong with them."""
        verdict = validate_description(self.teacher, name, proposal.description)
        if verdict.type_consistent is False:
            return Objection(ProposalDefect.TYPE_INCONSISTENT, f"{name!r} is not the kind of thing that is described")
        if verdict.too_simple:
            return Objection(ProposalDefect.TOO_SIMPLE, f"without tools: {verdict.guess!r}")
        stated = facts_stated(self.teacher, [(fact, self.documents[fact.document]) for fact in proposal.facts])
        if False in stated:
            fact = proposal.facts[stated.index(False)]
            reason = f"the second reading says that {fact.document!r} does not state: {fact.claim}"
            return Objection(ProposalDefect.NOT_STATED, reason)
        return LeafExpansion(name, proposal, verdict, None if None in stated else True)

    def _merge(self, task: Task, leaves: Sequence[LeafExpansion]) -> Task | Objection:
        """The task with all its leaves expanded, or what speaks against it."""
        objection = objection_to_merged(task, leaves)
        if objection is not None:
            return objection
        proofs = proofs_of(task, leaves, self.index, self.known)
        if isinstance(proofs, Objection):
            return proofs
        return expanded_task(task, leaves, proofs, self.teacher.name, self.config.structure)


def _refused(objection: Objection, task: Task, name: str, trajectory: Trajectory) -> Failure:
    item = {"task": task.key, "constant": name, "trajectory": trajectory.id, "text": trajectory.answer}
    return Failure(STAGE, objection.kind, objection.reason, item)


def _incomplete(task: Task, name: str, names: Sequence[str], found: Sequence[LeafExpansion], last: Trajectory) -> Failure:
    """That a task stays as it was, for one of its constants has no description."""
    reason = f"{name!r} has no description, and of the {len(names)} constants of a layer all give way or none"
    item = {"task": task.key, "constant": name, "described": [leaf.name for leaf in found], "last_run": last.id}
    return Failure(STAGE, ProposalDefect.LAYER_INCOMPLETE, reason, item)
