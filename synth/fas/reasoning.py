"""First-order action synthesis (AgentFounder, arXiv 2509.13310): plans with a first action, and reasoning chains; no tool is run.

Reasoning takes two passes (section 2.3). The first decomposes the question and answers it from what the oracle knows; the second refines
that on the required documents and is kept if its answer is a gold one; a teacher's passes are in `taught_reasoning`. Everything has the
form of trajectories, and short lookups stand among the long chains: a second form, or long texts alone, delay copying in a small policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Literal

from pydantic import Field, model_validator

from eval.graders.answers import exact_match
from rl.retrieval.search import passage
from synth.demonstrations.oracle import OracleStep, Show, Solution, path_of, read, transcript
from synth.demonstrations.tries import Search, all_tries, transcript_with
from synth.fas.plan_judge import PlanJudge
from synth.fas.plans import PlanSpec, build_plans
from synth.fas.slice_questions import SliceConfig
from synth.fas.slices import QuestionStyle
from synth.fas.taught_reasoning import AnswerJudge, Assignment, ReasoningBounds, reason_by_teacher
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import Parts, identity
from synth.questions.builder import build_questions
from synth.questions.config import QuestionConfig
from synth.questions.paths import Hop, Retrieve, Route
from synth.questions.walks import Shape
from synth.questions.wording import Phrasing, spoken
from synth.teachers.teacher import Teacher, parted
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Document, Example, Failure, Task
from warehouse.settings import Section

QUESTIONS_PER_SLICE = 3
"""Differently built questions over one slice of the graph's memory, one plan each; fewer where the slice is too short."""


class FasConfig(Section):
    """First-order action synthesis (AgentFounder, arXiv 2509.13310): plans and reasoning for CPT."""

    plan_slices: int = Field(default=500, ge=0)
    """Number of memory slices for which plans are written."""
    plans: Literal["oracle", "teacher"] = "oracle"
    """Who writes questions and plans over a slice: the graph, along a path, or a teacher, over statements about a few entities."""
    memory: tuple[Literal["facts", "passages", "results"], ...] = Field(default=("facts",), min_length=1)
    """Sources of the teacher's questions: facts in documents, passages of documents, tool results of stored runs."""
    max_question_tokens: int = Field(default=1_024, ge=1)
    """Maximum tokens of the questions that a teacher writes over one slice."""
    max_plan_tokens: int = Field(default=256, ge=1)
    """Maximum tokens of a teacher's plan."""
    plan_styles: tuple[QuestionStyle, ...] = ()
    """Question styles per slice, in turn: factual, multi_hop, numerical, synthesis; empty: segments of the slice's path."""
    reasoning: dict[int, int] = Field(default_factory=lambda: {1: 1_000, 2: 1_000, 3: 1_000, 4: 1_000})
    """Reasoning examples by hops (1 to 6)."""
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of intersection questions, as in `synth.webshaper`."""
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of union questions, as in `synth.webshaper`."""
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of one-hop intersections and unions that ask for the entity itself."""
    variety: int = Field(default=1, ge=1, le=3)
    """Variety of the wording, from 1 to 3."""
    imperfect: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the oracle's reasoning that uses `rollout.search.imperfect` and searches again where needed."""
    reasoner: Literal["oracle", "teacher"] = "oracle"
    """Who writes the reasoning: the graph, as full chains with searches, or a teacher, in two passes without searches."""
    judge: bool = False
    """Have the teacher judge every plan in addition to the search; both verdicts are stored."""
    slice_reasoning: bool = False
    """Have the teacher also reason about its questions over slices."""
    max_reasoning_tokens: int = Field(default=1_024, ge=1)
    """Maximum tokens per pass of a teacher's reasoning."""

    @model_validator(mode="after")
    def _check(self) -> FasConfig:
        if self.intersections + self.unions > 1:
            raise ValueError("intersections and unions are shares of all questions: together at most 1")
        if any(hops not in range(1, 7) or count < 0 for hops, count in self.reasoning.items()):
            raise ValueError("reasoning has hops from 1 to 6 and no negative number")
        if self.imperfect and self.reasoner == "teacher":
            raise ValueError("imperfect is a share of the oracle's reasoning; a teacher's searches nothing")
        if self.slice_reasoning and self.plans != "teacher":
            raise ValueError('slice_reasoning is for the questions that a teacher writes: set plans = "teacher"')
        return self

    @property
    def asks_for_reasoning(self) -> bool:
        """Whether a teacher reasons at all."""
        return self.reasoner == "teacher" or self.slice_reasoning

    @property
    def bounds(self) -> ReasoningBounds:
        """The bounds of a teacher's reasoning."""
        return ReasoningBounds(self.max_reasoning_tokens)

    @property
    def slices(self) -> SliceConfig:
        """How a teacher's slices are drawn and asked about."""
        styles = self.plan_styles or tuple(QuestionStyle)
        return SliceConfig(styles=styles, max_tokens=self.max_question_tokens)

    def plan_spec(self) -> PlanSpec:
        """What the plans are to be like: as deep as the reasoning, and of the same shapes in turn."""
        shapes = [Shape.CHAIN] if self.intersections + self.unions < 1 else []
        shapes += [Shape.INTERSECTION] if self.intersections else []
        shapes += [Shape.UNION] if self.unions else []
        max_hops = max((hops for hops, count in self.reasoning.items() if count), default=1)
        return PlanSpec(self.plan_slices, QUESTIONS_PER_SLICE, max_hops, tuple(shapes), self.variety, self.plan_styles)


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
    judge: PlanJudge | None = None,
    answers: AnswerJudge | None = None,
    search: Search | None = None,
) -> tuple[list[Example], list[Failure]]:
    """Plan examples, then reasoning examples, and what was rejected on the way.

    Args:
        retrieve: first hit of the search over the graph's documents; intersections and unions need it.
        show: how an observation shows a document; give what the environment does.
        allowed: which entities questions may touch, as in `build_questions`.
        teacher: writes the reasoning where the configuration says so.
        judge: judges plans beside the search; both verdicts stand in its `checks`, to be stored by the caller.
        answers: says whether a teacher's answer is an accepted one; its `checks` are the caller's to store too.
        search: the search of rollouts, for the share of the reasoning that meets it.

    Raises:
        RequestError: the configuration asks for a teacher's reasoning and there is no teacher.
    """
    phrasing = phrasing or Phrasing.of(graph)
    plans, rejected = build_plans(graph, config.plan_spec(), seed, retrieve, phrasing, wheel_turn, allowed, judge)
    wanted = QuestionConfig(
        counts=config.reasoning, intersections=config.intersections, unions=config.unions, identify=config.identify, variety=config.variety
    )
    tasks, dropped = build_questions(graph, wanted, seed_from("fas", seed), retrieve, allowed, phrasing)
    random.Random(seed_from("fas order", seed)).shuffle(tasks)
    if config.reasoner == "teacher":
        chains, wrong = _taught(graph, tasks, config, retrieve, wheel_turn, teacher, answers)
    else:
        rng = random.Random(seed_from("fas searches", seed))
        searches = [search if rng.random() < config.imperfect else None for _ in tasks]
        tried = zip(tasks, searches, strict=True)
        chains, wrong = parted(_reasoned(graph, task, retrieve, show, wheel_turn, met, rng) for task, met in tried)
    return plans + chains, rejected + dropped + wrong


def _reasoned(
    graph: KnowledgeGraph,
    task: Task,
    retrieve: Retrieve | None,
    show: Show,
    wheel_turn: int,
    search: Search | None,
    rng: random.Random,
) -> Example | Failure:
    """The oracle's reasoning: a full chain with searches, of which each brings its document, or `search` what it does."""
    solution = two_passes(graph, task, retrieve)
    if solution is None or not exact_match(solution.answer, task.answers):
        return Failure("synth", "fas_reason_not_gold", f"refined answer to: {task.question}", task.key)
    documents = [step.document for step in solution.steps]
    if search is None:
        return _example(task, transcript(task.question, solution, show), documents, wheel_turn)
    tried = all_tries(solution, search, rng)
    if tried is None:
        return Failure("synth", "fas_reason_not_found", f"the search brings not all documents of: {task.question}", task.key)
    return _example(task, transcript_with(task.question, solution, tried), documents, wheel_turn)


def _example(task: Task, parts: Parts, documents: Iterable[Document], wheel_turn: int) -> Example:
    sources = (task.key, *(document.id for document in documents))
    return Example(f"reason-{identity(task.key, parts=parts)}", "fas_reason", parts, sources, wheel_turn)


def _taught(
    graph: KnowledgeGraph,
    tasks: list[Task],
    config: FasConfig,
    retrieve: Retrieve | None,
    wheel_turn: int,
    teacher: Teacher | None,
    answers: AnswerJudge | None,
) -> tuple[list[Example], list[Failure]]:
    """A teacher's reasoning over the documents that the questions require."""
    if teacher is None:
        raise RequestError('synth.fas.reasoner is "teacher", but there is none: configure one, or set it to "oracle".')
    assignments: list[Assignment] = []
    failures: list[Failure] = []
    for task in tasks:
        documents = _required(graph, path_of(graph, task), retrieve)
        if documents is not None:
            sources = (task.key, *(document.id for document in documents))
            assignments.append(Assignment(task, tuple(map(passage, documents)), sources))
        else:
            failures.append(Failure("synth", "fas_reason_no_document", f"no documents for: {task.question}", task.key))
    examples, rejected = reason_by_teacher(teacher, assignments, config.bounds, answers, wheel_turn)
    return examples, failures + rejected


def two_passes(graph: KnowledgeGraph, task: Task, retrieve: Retrieve | None) -> Solution | None:
    """Decompose and answer from memory, then refine on the required documents; None where a pass comes to nothing.

    The first pass is the path of the task: each hop is a sub-question with the answer that the graph remembers.
    """
    path = path_of(graph, task)
    documents = _required(graph, path, retrieve)
    return None if path is None or documents is None else refine(graph, path, documents)


def _required(graph: KnowledgeGraph, path: Route | None, retrieve: Retrieve | None) -> list[Document] | None:
    """The documents that a path reads; None where there is no path or one of them is missing."""
    documents = [read(graph, hop, retrieve) for hop in path or ()]
    known = [document for document in documents if document is not None]
    return known if known and len(known) == len(documents) else None


def refine(graph: KnowledgeGraph, path: Route, documents: list[Document]) -> Solution | None:
    """The second pass: each hop's sub-question is answered again from what its document states; None where one does not answer it."""
    steps: list[OracleStep] = []
    think, value = "", ""
    for hop, document in zip(path, documents, strict=True):
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
