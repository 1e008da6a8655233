"""The Expander: a teacher in the agent loop that makes questions over an open corpus deeper (WebShaper, arXiv 2507.15061).

Layer by layer, every constant of a question is replaced by a description that the teacher finds by searching; the answer never changes. All
constants of a layer are replaced together, since a remaining one would be a shortcut; a layer that cannot be completed leaves the question
unchanged. Constants are described one after the other, so that no entity is used twice.

Loop, limits and outcomes are those of `rl`: a fault of the teacher or a tool makes an expansion invalid, which is not a rejected proposal.
Validation asks whether the constant is of the described kind and whether the teacher can name it without tools (section 3). A second
reader, shown only passage and claim, checks each fact. A missing reply leaves a verdict open (None).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from eval.graders.answers import sub_match
from rl.envs.base import EnvironmentFault, Observation, Step
from rl.envs.search import find
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action
from rl.retrieval.search import SearchIndex, passage
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.tools import ToolError, tool
from synth.corpora.config import SEARCH_DOCUMENTS, ExpanderConfig
from synth.corpora.grounding import StatedFact, stated_case
from synth.corpora.passages import short_passages_of
from synth.corpora.proposals import (
    DescriptionVerdict,
    KnownFacts,
    Layer,
    LeafExpansion,
    Objection,
    Proposal,
    ProposalDefect,
    expanded_task,
    grounded,
    leaves_of,
    not_replaceable,
    objection_to,
    objection_to_merged,
    proofs_of,
)
from synth.teachers.play import GuardedEnvironment, TeacherEngine, TextDialect, text_alone
from synth.teachers.readers import KIND, STATED, Readers
from synth.teachers.teacher import REPAIR, REPAIRS, Ending, Fault, Teacher, ask, read_json
from warehouse.digests import digest, seed_from
from warehouse.records import ANSWER, Completion, Document, Failure, Outcome, Task, Trajectory, user

PASSAGE_CHARACTERS = 2_000
"""Length of the passage shown to the second reader."""
MOST_SUMMARISED = 5
"""Most documents per `summarize` call."""
SUMMARISED_CHARACTERS = 24_000
"""Characters read per `summarize` call, shared equally among its documents."""

_GUESS = "What is meant by: {description}? Answer with the name alone, from what you know."
_SUMMARY = "{passages}\n\nGoal: {goal}\nFrom these documents alone, list what serves the goal, each with the id of its document."


def validate_description(readers: Readers, constant: str, description: str) -> DescriptionVerdict:
    """Ask the teacher whether `description` fits the kind of `constant`, and whether it can guess it without tools."""
    (consistent,) = readers.read(KIND, [{"constant": constant, "description": description}])
    guess = ask(readers.teacher, user(_GUESS.format(description=description), max_tokens=64))
    if isinstance(guess, Failure):
        return DescriptionVerdict(consistent, None)
    return DescriptionVerdict(consistent, sub_match(guess.text, [constant]), guess.text)


def facts_stated(readers: Readers, facts: Sequence[tuple[StatedFact, Document]]) -> list[bool | None]:
    """Whether the passage around each fact's quotation states it; None without a verdict."""
    return readers.read(STATED, [stated_case(fact, document.title, _around(fact.quote, document)) for fact, document in facts])


def _around(quote: str, document: Document) -> str:
    return next((text for text in short_passages_of(document.text, PASSAGE_CHARACTERS) if quote in text), quote)


class ExpanderEnvironment(ToolEnvironment):
    """The tools of one expansion; the task's provenance names the `constant` to replace.

    An answer that `objection` rejects returns to the teacher with the reason, at most `REPAIRS` times.
    """

    def __init__(
        self,
        index: SearchIndex,
        readers: Readers,
        documents: int,
        threads: Executor,
        objection: Callable[[str], str | None] = lambda text: None,
    ) -> None:
        super().__init__({"search": tool(self.search), "summarize": tool(self.summarize), "validate": tool(self.validate)})
        self._index, self._readers, self._documents, self._threads = index, readers, documents, threads
        self._objection, self._repairs = objection, 0
        self._by_id = {document.id: document for document in index.documents}
        self._constant = ""

    async def reset(self, task: Task, seed: int) -> Observation:
        self._constant = str(task.provenance["constant"])
        return Observation()

    async def step(self, action: Action) -> Step:
        if action.tool == ANSWER and self._repairs < REPAIRS:
            reason = await asyncio.get_running_loop().run_in_executor(self._threads, self._objection, action.arguments)
            if reason:
                self._repairs += 1
                return Step(REPAIR.format(reason=reason.rstrip(".")))
        return await super().step(action)

    async def search(self, query: str) -> str:
        """Search the corpus; each document comes with its id.

        Args:
            query: the title of a document, or words to look for.
        """
        return "\n\n".join(map(_shown, find(self._index, query, self._documents)))

    async def summarize(self, documents: list[str], goal: str) -> str:
        """Have documents read for a goal.

        Args:
            documents: their ids.
            goal: what to look for in them.
        """
        unknown = [name for name in documents if name not in self._by_id]
        if unknown or not documents:
            raise ToolError(f"no document has the id {unknown[0]!r}" if unknown else "name at least one document")
        if len(documents) > MOST_SUMMARISED:
            raise ToolError(f"name at most {MOST_SUMMARISED} documents, not {len(documents)}")
        passages = "\n\n".join(_shown(self._by_id[name])[: SUMMARISED_CHARACTERS // len(documents)] for name in documents)
        asked, loop = [user(_SUMMARY.format(passages=passages, goal=goal))], asyncio.get_running_loop()
        (reply,) = await loop.run_in_executor(self._threads, self._readers.teacher.complete, asked)
        if isinstance(reply, Failure) and reply.kind == Fault.REFUSED:
            raise ToolError(f"these documents cannot be read together: {reply.reason}")
        if isinstance(reply, Failure):
            raise EnvironmentFault(f"summarize: {reply.kind}: {reply.reason}")
        return reply.text

    async def validate(self, description: str) -> str:
        """Check a description of the constant: is the constant of that kind, and is it too easy to guess?

        Args:
            description: the words that are to stand in the place of the constant.
        """
        loop = asyncio.get_running_loop()
        verdict = await loop.run_in_executor(self._threads, validate_description, self._readers, self._constant, description)
        kind = {True: "consistent", False: "not consistent", None: "unknown"}[verdict.type_consistent]
        ease = {True: "too simple: it is named without tools", False: "not too simple", None: "unknown"}[verdict.too_simple]
        return f"Type: {kind}. Difficulty: {ease}."


def _shown(document: Document) -> str:
    return f"[{document.id}] {document.title}\n{passage(document)}"


STAGE = "expander"
INVALID = "invalid"
"""Failure kind for a fault of the teacher or a tool."""


@dataclass(slots=True)
class Expansion:
    """Result for several questions; `tasks` holds the deepest version of each question that could be expanded."""

    tasks: list[Task] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


SYSTEM = """You make questions harder. In a question one name is to be replaced by a description that has this name as its only answer, \
found by searching a corpus. Search for documents that name it, have the description checked with `validate`, then reply, without a call, \
with JSON alone:
{"description": "...", "facts": [{"subject": "...", "relation": "...", "object": "...", "quote": "...", "document": "id"}], \
"unknowns": ["..."]}
The description is a noun phrase. It does not contain the name, the answer of the question, a name that is taken, or any of the unknowns: \
entities that lie on the way. It names everything else that the facts are about, and no fact is about what is taken. Each quote is copied \
from its document and names the fact's subject (unless that is the document's title) and object. For example, "Sootlantern" becomes "the \
play that Orla Vennick wrote" by the fact that its author is Orla Vennick."""

_PROPOSAL = TypeAdapter(Proposal)
_MOST_TAKEN = 20
"""Most names listed to the teacher as taken; the checks use all of them."""


def expand(
    tasks: Sequence[Task],
    teacher: Teacher,
    index: SearchIndex,
    config: ExpanderConfig,
    seed: int,
    wheel_turn: int = 1,
    known: KnownFacts | None = None,
) -> Expansion:
    """Expand each of `tasks`, whose formulas must have constants that the question names.

    A task whose later layer fails keeps its earlier layers. `known` is the graph that proves what it can.

    Raises:
        RequestError: no request to the teacher can succeed.
    """
    result, current, made, readers = Expansion(), list(tasks), dict[int, Task](), Readers(teacher)
    for layer in range(1, config.layers + 1):
        outcomes = asyncio.run(_expand_layer(current, readers, index, config, seed_from(seed, layer), wheel_turn, known))
        for place, (before, outcome) in enumerate(zip(current, outcomes, strict=True)):
            result.trajectories += outcome.trajectories
            result.failures += [replace(failure, item={**failure.item, "task": tasks[place].key}) for failure in outcome.failures]
            if outcome.task is not None:
                made[place] = outcome.task
            current[place] = outcome.task or before
    result.failures += readers.drain()
    for place, task in sorted(made.items()):  # the versions in between are not stored
        result.tasks.append(replace(task, provenance={**task.provenance, "expanded_from": tasks[place].key}))
    return result


@dataclass(frozen=True, slots=True)
class _Outcome:
    task: Task | None
    trajectories: tuple[Trajectory, ...] = ()
    failures: tuple[Failure, ...] = ()


async def _expand_layer(
    tasks: Sequence[Task],
    readers: Readers,
    index: SearchIndex,
    config: ExpanderConfig,
    seed: int,
    wheel_turn: int,
    known: KnownFacts | None,
) -> list[_Outcome]:
    with ThreadPoolExecutor(config.concurrency) as threads:
        documents = {document.id: document for document in index.documents}
        work = _Work(readers, index, documents, config, seed, wheel_turn, threads, asyncio.Semaphore(config.concurrency), known)
        return list(await asyncio.gather(*(work.expand(task) for task in tasks)))


@dataclass(frozen=True, slots=True)
class _Work:
    readers: Readers
    index: SearchIndex
    documents: Mapping[str, Document]
    config: ExpanderConfig
    seed: int
    wheel_turn: int
    threads: Executor
    places: asyncio.Semaphore
    known: KnownFacts | None

    @property
    def teacher(self) -> Teacher:
        return self.readers.teacher

    async def expand(self, task: Task) -> _Outcome:
        names = leaves_of(task)
        if self.config.structure == "sequential":
            names = [name for name in names if not not_replaceable(task, [name])][:1]
        if not names or (staying := not_replaceable(task, names)):
            reason = f"{staying[0]!r} is no single constant that the question spells" if names else "no constant can be replaced"
            return _Outcome(None, failures=(Failure(STAGE, ProposalDefect.NO_CONSTANT, reason, {"task": task.key}),))
        async with self.places:
            return await self._expand(task, tuple(names))

    async def _expand(self, task: Task, names: tuple[str, ...]) -> _Outcome:
        """All `names` are described, or the task is not expanded."""
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
        task = layer.task
        key = digest([STAGE, self.teacher.name, task.key, name, self.seed, attempt])
        goal = f"Question: {task.question}\nAnswer of the question: {'; '.join(task.answers)}\nName to replace: {name}"
        if taken := [text for text in layer.met(name) if text not in task.answers][:_MOST_TAKEN]:
            goal += f"\nTaken: {'; '.join(taken)}"

        def objection(text: str) -> str | None:
            found = self._read(layer, name, text)
            return found.reason if isinstance(found, Objection) else None

        environment = ExpanderEnvironment(self.index, self.readers, SEARCH_DOCUMENTS, self.threads, objection)
        dialect = TextDialect()
        engine = TeacherEngine(self.teacher, dialect, SYSTEM, self.config.max_action_tokens, self.threads)
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
        if trajectory.answer is None:
            return _refused(
                Objection(ProposalDefect.NO_PROPOSAL, f"ended without a proposal: {trajectory.stop_reason}"), layer.task, name, trajectory
            )
        read = self._read(layer, name, trajectory.answer)
        judged = self._validate(read, name) if isinstance(read, Proposal) else read
        return judged if isinstance(judged, LeafExpansion) else _refused(judged, layer.task, name, trajectory)

    def _read(self, layer: Layer, name: str, text: str) -> Proposal | Objection:
        """The proposal in an answer, with its documents' own words, or what is provably wrong with it."""
        proposal = read_json(Completion("", self.teacher.name, {}, text, Ending.STOP, 0, 0), _PROPOSAL)
        if isinstance(proposal, Failure):
            return Objection(proposal.kind, proposal.reason)
        shown = grounded(proposal, self.documents)
        return shown if isinstance(shown, Objection) else objection_to(shown, layer, name) or shown

    def _validate(self, proposal: Proposal, name: str) -> LeafExpansion | Objection:
        verdict = validate_description(self.readers, name, proposal.description)
        if verdict.type_consistent is False:
            return Objection(ProposalDefect.TYPE_INCONSISTENT, f"{name!r} is not of the described kind")
        if verdict.too_simple:
            return Objection(ProposalDefect.TOO_SIMPLE, f"without tools: {verdict.guess!r}")
        stated = facts_stated(self.readers, [(fact, self.documents[fact.document]) for fact in proposal.facts])
        if False in stated:
            fact = proposal.facts[stated.index(False)]
            reason = f"the second reader denies that {fact.document!r} states: {fact.claim}"
            return Objection(ProposalDefect.NOT_STATED, reason)
        return LeafExpansion(name, proposal, verdict, None if None in stated else True)

    def _merge(self, task: Task, leaves: Sequence[LeafExpansion]) -> Task | Objection:
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
    reason = f"no description of {name!r}; the {len(names)} constants of a layer are replaced together or not at all"
    item = {"task": task.key, "constant": name, "described": [leaf.name for leaf in found], "last_run": last.id}
    return Failure(STAGE, ProposalDefect.LAYER_INCOMPLETE, reason, item)
