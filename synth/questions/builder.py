"""Build questions over a knowledge graph in the WebShaper form, each with its proofs.

A candidate is drawn as a path through documented facts, or grown from a seed by layers (`synth.questions.expansion`). It is kept only if
its formula has exactly one answer in the whole graph (or a few, if sets are allowed), a search finds every document on the way, every
constraint is needed, and a document states every fact. Rejections are returned with reasons; the random structure is rejected most often,
by design.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from synth.formulas.projections import Values, first_answers, witnesses
from synth.formulas.proofs import Proofs, first_witnesses, prove
from synth.formulas.triples import count_constants, depth, formula_digest
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.decontamination import WITNESSES
from synth.questions.expansion import Definer, GrownQuestion, GrowthSpec, Structure, essence, grow, readings
from synth.questions.paths import Hop, Retrieve, Route, Shape, Walker, find_document, formula_of, trace
from synth.questions.wording import Phrasing, word_question
from warehouse.digests import digest, seed_from
from warehouse.records import Document, Failure, Task, Triple
from warehouse.settings import Section

QuestionStructure = Literal["paths", "layerwise", "random", "sequential"]


class QuestionConfig(Section):
    """Graph questions by number and kind."""

    counts: dict[int, int] = Field(default_factory=lambda: {1: 100, 2: 100, 3: 100, 4: 100})
    """Number of questions by hops (1 to 6), the documents to read; by layers unless `structure` is `paths`."""
    count: int | None = Field(default=None, ge=0)
    """Total number of questions, distributed in proportion to `counts`; other shapes and hops fill gaps. None: exactly `counts`."""
    structure: QuestionStructure = "paths"
    """`paths` between documents, or expanded from a seed: `layerwise`, `random`, `sequential` (`synth/questions/expansion.py`)."""
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of questions that start from two properties of an entity instead of its name."""
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of questions that start from two properties, one of which has two possible values."""
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of questions that ask for the entity itself, among those whose last document is found by two properties."""
    set_answers: bool = False
    """Allow questions with up to 20 answers, marked as sets."""
    allowed_shortcuts: int = Field(default=2, ge=0)
    """Maximum constants adjacent to the target in the formula."""
    easy: Literal["keep", "drop"] = "keep"
    """Keep or drop questions whose own text, as a query, retrieves a document of the answer first."""
    variety: int = Field(default=1, ge=1, le=3)
    """Variety of question wording, 1 to 3."""
    environment: str = "search"
    """Environment of the tasks."""

    @model_validator(mode="after")
    def _check(self) -> QuestionConfig:
        if self.intersections + self.unions > 1:
            raise ValueError("intersections and unions are shares of all questions: together at most 1")
        if any(hops not in range(1, 7) or count < 0 for hops, count in self.counts.items()):
            raise ValueError("counts maps hops from 1 to 6 to numbers, none of them negative")
        if self.count and not sum(self.counts.values()):
            raise ValueError("count is divided in the proportions of counts, but counts has no questions")
        return self

    @property
    def unit(self) -> str:
        return "hops" if self.structure == "paths" else "layers"

    @property
    def asked_by(self) -> str:
        """Name of the setting that determines the number of questions."""
        return "counts" if self.count is None else "count"

    def wanted(self) -> dict[int, int]:
        """Questions by hops, ascending; `count` is distributed by largest remainders."""
        if self.count is None:
            return dict(sorted(self.counts.items()))
        total = sum(self.counts.values())
        exact = {hops: self.count * number / total for hops, number in sorted(self.counts.items())}
        left = self.count - sum(map(int, exact.values()))
        raised = sorted(exact, key=lambda hops: int(exact[hops]) - exact[hops])[:left]
        return {hops: int(number) + (hops in raised) for hops, number in exact.items()}


class TrainingQuestionConfig(QuestionConfig):
    """RL training questions; `layerwise` by default, unlike those of suites and demonstrations."""

    structure: QuestionStructure = "layerwise"


_LARGEST_SET = 20
"""Maximum answers; questions with more are too unspecific."""


class RejectionReason(StrEnum):
    """Why a candidate is rejected, or fewer questions were built than requested."""

    NOT_UNIQUE = "not_unique"
    NOT_FOUND = "not_found_by_search"
    REDUNDANT = "redundant_constraint"
    SHORTCUT = "shortcut"
    CONSTANT_EDGE = "constant_edge"
    UNSUPPORTED = "unsupported_fact"
    EASY = "easy"
    SHORTFALL = "shortfall"


def build_questions(
    graph: KnowledgeGraph,
    config: QuestionConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    allowed: Callable[[str], bool] | None = None,
    known: Iterable[str] = (),
    refuse: Callable[[Task], Failure | None] | None = None,
    split: str = "train",
) -> tuple[list[Task], list[Failure]]:
    """Build questions by ascending hops (or layers); a `Failure` reports any shortfall.

    If `config.count` is set, other kinds replace missing questions.

    Args:
        retrieve: top hit of the agent's search. None: documents are found by title only, without intersections and unions.
        allowed: whether an entity may occur on a path (start, intermediate and answer), to split a graph by entities; not applied to an
            intersection's second condition.
        known: keys of existing questions, which are skipped.
        refuse: additional check that may reject a proven question.

    Raises:
        ValueError: intersections, unions or grown questions are requested without `retrieve`.
    """
    if retrieve is None and (config.intersections or config.unions or config.structure != "paths"):
        raise ValueError("intersections, unions and grown questions need a search by what is known of a document: give retrieve")
    common = (graph, config, split, seed, retrieve, Phrasing.of(graph), refuse, set(known))
    if config.structure == "paths":
        return _PathBuilder(*common, Walker(graph, allowed, pivots=retrieve is not None, sets=config.set_answers)).build()
    return _GrownBuilder(*common, Definer(graph, allowed)).build()


def objection(proofs: Proofs, allowed_shortcuts: int, drops_easy: bool) -> tuple[RejectionReason, str] | None:
    """Reason to reject a question with these proofs, or None."""
    if proofs.redundant:
        return RejectionReason.REDUNDANT, f"the answers are the same without triple {proofs.redundant[0]}"
    if proofs.constant_edges:
        return RejectionReason.CONSTANT_EDGE, f"triple {proofs.constant_edges[0]} joins two constants"
    if len(proofs.shortcuts) > allowed_shortcuts:
        return RejectionReason.SHORTCUT, f"{len(proofs.shortcuts)} constants are adjacent to the target"
    if proofs.unsupported:
        return RejectionReason.UNSUPPORTED, f"no document states the fact of triple {proofs.unsupported[0]}"
    if proofs.easy and drops_easy:
        return RejectionReason.EASY, "the question's own text retrieves a document of the answer first"
    return None


Candidate = TypeVar("Candidate")


@dataclass(slots=True)
class _Builder(ABC, Generic[Candidate]):
    graph: KnowledgeGraph
    config: QuestionConfig
    split: str
    seed: int
    retrieve: Retrieve | None
    phrasing: Phrasing
    refuse: Callable[[Task], Failure | None] | None
    known: set[str]

    tasks: list[Task] = field(default_factory=list, init=False)
    failures: list[Failure] = field(default_factory=list, init=False)

    @abstractmethod
    def consider(self, candidate: Candidate) -> None:
        """Add the candidate's task, or the failure that explains its rejection."""

    def fill(self, candidates: Iterable[Candidate], count: int, kind: str, item: dict[str, Any]) -> int:
        """Add up to `count` questions; return the number missing, which a failure with `kind` and `item` reports."""
        have = len(self.tasks)
        for candidate in candidates:
            self.consider(candidate)
            if len(self.tasks) - have >= count:
                return 0
        missing = count - (len(self.tasks) - have)
        reason = f"{missing} of {count} {kind} are missing: no more were found"
        self.failures.append(Failure("synth", RejectionReason.SHORTFALL, reason, {**item, "missing": missing}))
        return missing

    def find_documents(self, hops: Iterable[Hop], formula: tuple[Triple, ...]) -> list[Document] | None:
        """Document of every hop; None, and a failure, if a search misses one."""
        documents: list[Document] = []
        for hop in hops:
            document = find_document(self.graph, hop, self.retrieve)
            if document is None:
                reason = f"a search for {hop.query!r} does not find its document"
                self.failures.append(Failure("synth", RejectionReason.NOT_FOUND, reason, {"formula": formula, "query": hop.query}))
                return None
            documents.append(document)
        return documents

    def identity(self, entity: str, formula: tuple[Triple, ...]) -> tuple[str, str]:
        """Key and source of a question; the source is that of the path's first entity, since worlds share names."""
        source = next((fact.source for fact in self.graph.about(entity)), "")
        return digest([self.config.environment, source, formula]), source

    def prove(
        self,
        key: str,
        formula: tuple[Triple, ...],
        worded: tuple[Triple, ...],
        hops: int,
        provenance: dict[str, Any],
        proven: Mapping[str, Values],
    ) -> None:
        """Add the task with its proofs, or the failure for its rejection.

        Args:
            worded: triples expressed in the question.
            proven: first witness of every answer.
        """
        rng = random.Random(seed_from("wording", self.seed, key))
        question = word_question(worded, self.phrasing, self.config.variety, rng)
        proofs = prove(self.graph, formula, question, self.retrieve, proven)
        if against := objection(proofs, self.config.allowed_shortcuts, self.config.easy == "drop"):
            self.failures.append(Failure("synth", against[0], against[1], {"formula": formula, "proofs": proofs.record()}))
            return
        task = Task(
            key=key,
            environment=self.config.environment,
            question=question,
            answers=proofs.answers,
            formula=formula,
            split=self.split,
            hops=hops,
            constraints=count_constants(formula),
            layers=depth(formula),
            provenance={**provenance, WITNESSES: sorted({value for values in proven.values() for value in values.values()})},
            proofs=proofs.record(),
        )
        refused = self.refuse(task) if self.refuse is not None else None
        if refused is None:
            self.tasks.append(task)
        else:
            self.failures.append(refused)


_Kind = tuple[int, Shape]


@dataclass(slots=True)
class _PathBuilder(_Builder[tuple[Route, Shape]]):
    walker: Walker

    def build(self) -> tuple[list[Task], list[Failure]]:
        wanted = {(hops, shape): n for hops, count in self.config.wanted().items() for shape, n in _shares(self.config, count) if n}
        missing = {kind: self._fill(kind, count) for kind, count in wanted.items()}
        if self.config.count is not None:
            self._make_up(missing)
        return self.tasks, self.failures

    def consider(self, candidate: tuple[Route, Shape]) -> None:
        drawn, shape = candidate
        formula = formula_of(drawn)
        key, source = self.identity(drawn[0].entity, formula)
        if key in self.known:
            return
        self.known.add(key)
        if self.find_documents(drawn, formula) is None:
            return
        most = _LARGEST_SET if self.config.set_answers else 1
        answers = sorted(first_answers(self.graph, formula, most + 1))
        proven = witnesses(self.graph, formula, answers) if len(answers) <= most else {}
        path = trace(self.graph, formula, answers[0], proven[answers[0]]) if proven else None
        if path is None:
            item = {"formula": formula, "answers": answers[:10]}
            self.failures.append(Failure("synth", RejectionReason.NOT_UNIQUE, f"at least {len(answers)} answers instead of one", item))
        elif path == drawn or self.find_documents(path, formula) is not None:
            marks = {"set": True} if len(proven) > 1 else {}
            way = [*(hop.entity for hop in path), path[-1].value]
            self.prove(key, formula, formula, len(path), {"source": source, "shape": str(shape), "path": way, **marks}, proven)

    def _fill(self, kind: _Kind, count: int, *salt: str) -> int:
        hops, shape = kind
        rng = random.Random(seed_from("questions", self.seed, self.split, shape, hops, *salt))
        drawn = ((path, shape) for path in self.walker.paths(shape, hops, self.config.identify, rng, wanted=count))
        return self.fill(drawn, count, f"{shape} questions of {hops} hops", {"hops": hops, "shape": str(shape)})

    def _make_up(self, missing: dict[_Kind, int]) -> None:
        """Replace missing questions by other kinds, nearest in hops first."""
        rich = [kind for kind, lacking in missing.items() if not lacking]
        for (hops, shape), lacking in missing.items():
            for kind in sorted(rich, key=lambda kind: abs(kind[0] - hops)) if lacking else ():
                lacking = self._fill(kind, lacking, "in place of", str(shape), str(hops))
                if not lacking:
                    break
                rich.remove(kind)


def _shares(config: QuestionConfig, count: int) -> Iterator[tuple[Shape, int]]:
    unions, intersections = round(count * config.unions), round(count * config.intersections)
    intersections = min(intersections, count - unions)
    yield Shape.CHAIN, count - unions - intersections
    yield Shape.INTERSECTION, intersections
    yield Shape.UNION, unions


@dataclass(slots=True)
class _GrownBuilder(_Builder[GrownQuestion]):
    definer: Definer
    seen: set[str] = field(default_factory=set, init=False)
    """Digests of considered formulas."""

    def build(self) -> tuple[list[Task], list[Failure]]:
        missing = {layers: self._fill(layers, count) for layers, count in self.config.wanted().items() if count}
        left = sum(missing.values()) if self.config.count is not None else 0
        for layers in [layers for layers, lacking in missing.items() if not lacking]:
            left = self._fill(layers, left, "in place of others") if left else 0
        return self.tasks, self.failures

    def consider(self, candidate: GrownQuestion) -> None:
        formula, same = candidate.formula, formula_digest(candidate.formula)
        if same in self.seen:
            return
        self.seen.add(same)
        hops = readings(candidate)
        documents = self.find_documents(hops, formula)
        if documents is None:
            return
        path = [*dict.fromkeys([*(hop.entity for hop in hops), candidate.answer])]
        key, source = self.identity(path[0], formula)
        if key not in self.known:
            provenance = {"source": source, "shape": self.config.structure, "path": path}
            worded = essence(formula)
            proven = first_witnesses(self.graph, worded)
            self.prove(key, formula, worded, len({document.id for document in documents}), provenance, proven)

    def _fill(self, layers: int, count: int, *salt: str) -> int:
        config = self.config
        growth = GrowthSpec(Structure(config.structure), layers, config.intersections, config.unions)
        rng = random.Random(seed_from("grown", self.seed, self.split, config.structure, layers, *salt))
        kind = f"{config.structure} questions of {layers} layers"
        return self.fill(grow(self.definer, growth, rng, count), count, kind, {"layers": layers, "shape": config.structure})
