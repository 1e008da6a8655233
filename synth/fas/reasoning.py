"""First-order action synthesis (AgentFounder, arXiv 2509.13310): plans with a first action, and reasoning chains; no tool is run.

Reasoning takes two passes. The first decomposes the question and answers it from what the oracle knows; the second refines that
on the required documents and is kept if its answer is a gold one. Everything is written in the one dialect of the trajectories,
and short lookups stand among the long chains: a second format, or long texts alone, delay copying in a small policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from eval.answers import exact_match
from rl.retrieval.search import passage
from synth.fas.jury import Jury
from synth.fas.plans import PlanWishes, build_plans
from synth.fas.styles import QuestionStyle
from synth.fas.teacher_passes import Assignment, reason_by_teacher
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.building import QuestionConfig, build_questions
from synth.questions.paths import Hop, Retrieve
from synth.questions.walks import Shape
from synth.questions.wording import Phrasing, spoken
from synth.teachers.teacher import Teacher
from synth.trajectories.oracle import OracleStep, Show, Solution, path_of, read, transcript
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import Document, Example, Failure, Task
from warehouse.settings import Section


class FasConfig(Section):
    """How much first-order text to write."""

    plan_slices: int = Field(default=500, ge=0)
    """Slices of the memory for which plans are written."""
    plan_questions: int = Field(default=3, ge=1)
    """Differently built questions over one slice, a plan each; fewer where the slice is too short for as many."""
    plan_styles: tuple[QuestionStyle, ...] = ()
    """Styles of the questions over one slice, in turn: factual, multi_hop, numerical, synthesis. Without any, they are stretches of
    the slice's path."""
    reasoning: dict[int, int] = Field(default_factory=lambda: {1: 1_000, 2: 1_000, 3: 1_000, 4: 1_000})
    """Reasoning examples by hops."""
    lookup_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share that one-hop examples must at least have among all reasoning examples; what `reasoning` lacks of it is added."""
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of one-hop intersections and unions that ask for the entity itself."""
    variety: int = Field(default=1, ge=1, le=3)
    """How freely the questions are worded."""
    order: Literal["mixed", "short_first"] = "mixed"
    """Order of the reasoning examples: shuffled, or by rising hops."""
    reasoner: Literal["oracle", "teacher"] = "oracle"
    """Who writes the reasoning: the graph, in full chains with searches; or a teacher, in two passes without any."""
    judge: bool = False
    """Let the teacher judge every plan beside the search; what both said is recorded."""
    max_reasoning_tokens: int = Field(default=1_024, ge=1)
    """Bound of each pass of a teacher's reasoning."""

    @model_validator(mode="after")
    def _check(self) -> FasConfig:
        if self.intersections + self.unions > 1:
            raise ValueError("intersections and unions are shares of all questions: together at most 1")
        if any(hops not in range(1, 7) or count < 0 for hops, count in self.reasoning.items()):
            raise ValueError("reasoning has hops from 1 to 6 and no negative number")
        return self

    def counts(self) -> dict[int, int]:
        """Reasoning examples by hops with the lookups that `lookup_share` asks for."""
        longer = sum(count for hops, count in self.reasoning.items() if hops > 1)
        lookups = round(longer * self.lookup_share / (1 - self.lookup_share))
        return {**self.reasoning, 1: max(self.reasoning.get(1, 0), lookups)}

    def plan_wishes(self) -> PlanWishes:
        """What the plans are to be like: as deep as the reasoning, and of the same shapes in turn."""
        shapes = [Shape.CHAIN] if self.intersections + self.unions < 1 else []
        shapes += [Shape.INTERSECTION] if self.intersections else []
        shapes += [Shape.UNION] if self.unions else []
        max_hops = max((hops for hops, count in self.reasoning.items() if count), default=1)
        return PlanWishes(self.plan_slices, self.plan_questions, max_hops, tuple(shapes), self.variety, self.plan_styles)


@dataclass(frozen=True, slots=True)
class Draft:
    """The first pass: the hops that a question falls into, each a sub-question with the answer from memory."""

    hops: tuple[Hop, ...]

    @property
    def sub_questions(self) -> tuple[str, ...]:
        """The sub-questions as text."""
        return tuple(f"{spoken(hop.relation or 'name')} of {hop.entity}?" for hop in self.hops)

    @property
    def answer(self) -> str:
        """The answer from memory alone (A1)."""
        return self.hops[-1].value


def build_fas(
    graph: KnowledgeGraph,
    config: FasConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    show: Show = passage,
    phrasing: Phrasing | None = None,
    wheel_turn: int = 1,
    allowed: Callable[[str], bool] | None = None,
    teacher: Teacher | None = None,
    jury: Jury | None = None,
) -> tuple[list[Example], list[Failure]]:
    """Plan examples, then reasoning examples, and what was rejected on the way.

    Args:
        retrieve: first hit of the search over the graph's documents; intersections and unions need it.
        show: how an observation shows a document; give what the environment does.
        allowed: which entities questions may touch, as in `build_questions`.
        teacher: writes the reasoning where the configuration says so.
        jury: judges plans beside the search; what it and the search said stands in its `checks`, to be stored by the caller.

    Raises:
        RequestError: the configuration asks for a teacher's reasoning and there is no teacher.
    """
    phrasing = phrasing or Phrasing.of(graph)
    plans, rejected = build_plans(graph, config.plan_wishes(), seed, retrieve, phrasing, wheel_turn, allowed, jury)
    chains, dropped = build_reasoning(graph, config, seed, retrieve, show, phrasing, wheel_turn, allowed, teacher)
    return plans + chains, rejected + dropped


def build_reasoning(
    graph: KnowledgeGraph,
    config: FasConfig,
    seed: int,
    retrieve: Retrieve | None,
    show: Show,
    phrasing: Phrasing,
    wheel_turn: int = 1,
    allowed: Callable[[str], bool] | None = None,
    teacher: Teacher | None = None,
) -> tuple[list[Example], list[Failure]]:
    """Reasoning examples in the order of the configuration."""
    wishes = QuestionConfig(
        counts=config.counts(), intersections=config.intersections, unions=config.unions, identify=config.identify, variety=config.variety
    )
    tasks, failures = build_questions(graph, wishes, seed_from("fas", seed), retrieve, allowed, phrasing)
    if config.order == "mixed":
        random.Random(seed_from("fas order", seed)).shuffle(tasks)
    if config.reasoner == "teacher":
        examples, rejected = _taught(graph, tasks, config, retrieve, wheel_turn, teacher)
        return examples, failures + rejected
    examples = []
    for task in tasks:
        solution = two_passes(graph, task, retrieve)
        if solution is not None and exact_match(solution.answer, task.answers):
            examples.append(_example(task, solution, show, wheel_turn))
        else:
            failures.append(Failure("synth", "fas_reason_not_gold", f"refined answer to: {task.question}", task.key))
    return examples, failures


def _taught(
    graph: KnowledgeGraph, tasks: list[Task], config: FasConfig, retrieve: Retrieve | None, wheel_turn: int, teacher: Teacher | None
) -> tuple[list[Example], list[Failure]]:
    """A teacher's reasoning over the documents that the questions require."""
    if teacher is None:
        raise RequestError('synth.fas.reasoner is "teacher", but there is none: configure one, or set it to "oracle".')
    assignments: list[Assignment] = []
    failures: list[Failure] = []
    for task in tasks:
        documents = [read(graph, hop, retrieve) for hop in path_of(graph, task) or ()]
        known = tuple(document for document in documents if document is not None)
        if documents and len(known) == len(documents):
            assignments.append(Assignment(task, known))
        else:
            failures.append(Failure("synth", "fas_reason_no_document", f"no documents for: {task.question}", task.key))
    examples, rejected = reason_by_teacher(teacher, assignments, config.max_reasoning_tokens, wheel_turn)
    return examples, failures + rejected


def two_passes(graph: KnowledgeGraph, task: Task, retrieve: Retrieve | None) -> Solution | None:
    """Decompose and answer from memory, then refine on the required documents; None where a pass comes to nothing."""
    drafted = draft(graph, task)
    if drafted is None:
        return None
    documents = [read(graph, hop, retrieve) for hop in drafted.hops]
    known = [document for document in documents if document is not None]
    return refine(graph, drafted, known) if len(known) == len(documents) else None


def draft(graph: KnowledgeGraph, task: Task) -> Draft | None:
    """The first pass: the question's decomposition, answered from the graph without a document; None where it has none."""
    path = path_of(graph, task)
    return Draft(path) if path else None


def refine(graph: KnowledgeGraph, drafted: Draft, documents: list[Document]) -> Solution | None:
    """The second pass: each sub-question is answered again from what its document states; None where one does not answer it."""
    steps: list[OracleStep] = []
    think, value = "", ""
    for hop, document in zip(drafted.hops, documents, strict=True):
        steps.append(OracleStep(think, hop.query, document))
        stated = _stated(graph, hop, document)
        if not stated:
            return None
        value = hop.value if hop.value in stated else stated[0]
        think = f"{spoken(hop.relation or graph.types.get(hop.entity, 'found'))} {value}"
    return Solution(tuple(steps), think, value)


def _stated(graph: KnowledgeGraph, hop: Hop, document: Document) -> list[str]:
    """What a document answers to the sub-question of a hop."""
    if hop.relation is None:
        return [document.title]
    return [fact.object for fact in graph.about(hop.entity) if fact.relation == hop.relation and document.id in fact.documents]


def _example(task: Task, solution: Solution, show: Show, wheel_turn: int) -> Example:
    text = "".join(part for part, _ in transcript(task.question, solution, show))
    sources = (task.key, *(step.document.id for step in solution.steps))
    return Example(f"reason-{digest([task.key, text])}", "fas_reason", ((text, True),), sources, wheel_turn)
