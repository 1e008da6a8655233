"""Questions in the WebShaper form over a knowledge graph: chains, intersections and unions of a wanted depth.

A question is drawn as a path through stated facts, written as a formula, and kept only if solving that formula over the whole graph
gives exactly one answer (or, where sets are allowed, a few) and a search finds every document on the way. Its proofs are stored with
it: a question with a constraint that is not needed, or with a fact that no document states, is dropped. What was dropped is returned with
its reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, model_validator

from synth.formulas.projections import Values, first_answers
from synth.formulas.projections import witnesses as find_witnesses
from synth.formulas.proofs import prove
from synth.formulas.triples import depth, is_constant
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.drops import Drop, objection
from synth.questions.grown_questions import expand_questions
from synth.questions.paths import Retrieve, Route, find_document, formula_of, trace
from synth.questions.walks import Shape, Walker
from synth.questions.wording import Phrasing, word_question
from warehouse.digests import digest, seed_from
from warehouse.records import Failure, Task, Triple
from warehouse.settings import Section

__all__ = ["QuestionConfig", "build_questions"]


class QuestionConfig(Section):
    """How many questions of which kind."""

    counts: dict[int, int] = Field(default_factory=lambda: {1: 100, 2: 100, 3: 100, 4: 100})
    """Questions wanted by hops (1 to 6): the number of documents that must be read; by layers where `structure` is not `paths`."""
    count: int | None = Field(default=None, ge=0)
    """Questions wanted in all, in the shares of `counts`; by default as many as `counts` says.

    What the graph has too few of is then made up for by questions of other shapes and hops.
    """
    structure: Literal["paths", "layerwise", "random", "sequential"] = "paths"
    """How a question comes to be: drawn as a path from document to document, or grown from a seed; see `synth.questions.expansion`.

    In grown ones `intersections` is the share of unknowns with two constraints, and `unions` that of questions with an open constant.
    """
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that begin with an entity of which two things are known instead of its name."""
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that begin so and leave one of the two things open between two values."""
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share that ask for an entity itself, among the questions whose last document is found by two things known of it."""
    set_answers: bool = False
    """Whether a question may have several answers, up to 20; they are then marked as sets in their provenance."""
    allowed_shortcuts: int = Field(default=2, ge=0)
    """Constants that may stand right beside the target: the plainest chain has one there, an intersection that asks for its entity two."""
    easy: Literal["keep", "drop"] = "keep"
    """What is done with a question whose own text, given to the search, already brings a document of the answer on top."""
    variety: int = Field(default=1, ge=1, le=3)
    """How freely the questions are worded; see `synth.questions.wording`."""
    split: str = "train"
    environment: str = "search"

    @model_validator(mode="after")
    def _check(self) -> QuestionConfig:
        if self.intersections + self.unions > 1:
            raise ValueError("intersections and unions are shares of all questions: together at most 1")
        if any(hops not in range(1, 7) or count < 0 for hops, count in self.counts.items()):
            raise ValueError("counts has hops from 1 to 6 and no negative number")
        if self.count and not sum(self.counts.values()):
            raise ValueError("count is shared out as counts says, and counts wants no question at all")
        return self

    def wanted(self) -> dict[int, int]:
        """Questions by rising hops; what remains of `count` after rounding down goes to the largest remainders."""
        if self.count is None:
            return dict(sorted(self.counts.items()))
        total = sum(self.counts.values())
        exact = {hops: self.count * number / total for hops, number in sorted(self.counts.items())}
        left = self.count - sum(map(int, exact.values()))
        raised = sorted(exact, key=lambda hops: int(exact[hops]) - exact[hops])[:left]
        return {hops: int(number) + (hops in raised) for hops, number in exact.items()}


_LARGEST_SET = 20
"""Answers beyond which a set says that the question asks for too little."""


@dataclass(slots=True)
class _Batch:
    """What has been built so far; `seen` also holds the keys of the candidates that were dropped."""

    seen: set[str]
    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def build_questions(
    graph: KnowledgeGraph,
    config: QuestionConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    allowed: Callable[[str], bool] | None = None,
    phrasing: Phrasing | None = None,
    known: Iterable[str] = (),
    refuse: Callable[[Task], Failure | None] | None = None,
) -> tuple[list[Task], list[Failure]]:
    """Questions by rising hops; fewer than wanted, with a `Failure` that says so, where the graph has no more.

    Where `config.count` says how many there must be in all, what is missing of one kind is made up for by the others.

    Args:
        retrieve: first hit of the search that the agent will use. Without it documents are found by their titles alone, and
            there are no intersections or unions.
        allowed: whether an entity may lie on a path (start, way and answer); the second condition of an intersection may not
            be refused. Give `split_of(...) == split` here to part one graph by its entities.
        phrasing: how relations are worded; by default as the generated worlds word them.
        known: the keys of questions that are there already and are not made again.
        refuse: why a question that is proven may not be kept all the same, if so.

    Raises:
        ValueError: intersections, unions or grown questions are wanted without `retrieve`.
    """
    phrasing = phrasing or Phrasing.of(graph)
    if retrieve is None and (config.intersections or config.unions or config.structure != "paths"):
        raise ValueError("intersections, unions and grown questions need a search by what is known of a document: give retrieve")
    if retrieve is not None and config.structure != "paths":
        return expand_questions(graph, config, seed, retrieve, allowed, phrasing, known, refuse)
    walker = Walker(graph, allowed, pivots=retrieve is not None, sets=config.set_answers)
    builder = _Builder(graph, config, seed, retrieve, phrasing, walker, refuse)
    batch = _Batch(set(known))
    wanted = {(hops, shape): n for hops, count in config.wanted().items() for shape, n in _shares(config, count) if n}
    missing = {kind: builder.fill(batch, kind, count) for kind, count in wanted.items()}
    if config.count is not None:
        builder.make_up(batch, missing)
    return batch.tasks, batch.failures


def _shares(config: QuestionConfig, count: int) -> Iterator[tuple[Shape, int]]:
    """How many questions of each shape make up `count`; they sum to it."""
    unions, intersections = round(count * config.unions), round(count * config.intersections)
    intersections = min(intersections, count - unions)
    yield Shape.CHAIN, count - unions - intersections
    yield Shape.INTERSECTION, intersections
    yield Shape.UNION, unions


_Kind = tuple[int, Shape]
"""The hops and the shape of a question."""


@dataclass(frozen=True, slots=True)
class _Builder:
    graph: KnowledgeGraph
    config: QuestionConfig
    seed: int
    retrieve: Retrieve | None
    phrasing: Phrasing
    walker: Walker
    refuse: Callable[[Task], Failure | None] | None

    def fill(self, batch: _Batch, kind: _Kind, count: int, *salt: str) -> int:
        """Add up to `count` questions of a kind to the batch; how many are missing then."""
        have, (hops, shape) = len(batch.tasks), kind
        rng = random.Random(seed_from("questions", self.seed, self.config.split, shape, hops, *salt))
        for path in self.walker.paths(shape, hops, self.config.identify, rng, wanted=count):
            self._consider(batch, path, shape)
            if len(batch.tasks) - have >= count:
                return 0
        missing = count - (len(batch.tasks) - have)
        reason = f"{missing} of {count} {shape} questions of {hops} hops are missing: no more were found"
        batch.failures.append(Failure("synth", Drop.SHORTFALL, reason, {"hops": hops, "shape": str(shape), "missing": missing}))
        return missing

    def make_up(self, batch: _Batch, missing: dict[_Kind, int]) -> None:
        """Add questions of other kinds, the nearest in hops first, for those that the graph has too few of."""
        rich = [kind for kind, lacking in missing.items() if not lacking]
        for (hops, shape), lacking in missing.items():
            for kind in sorted(rich, key=lambda kind: abs(kind[0] - hops)) if lacking else ():
                lacking = self.fill(batch, kind, lacking, "in place of", str(shape), str(hops))
                if not lacking:
                    break
                rich.remove(kind)

    def _consider(self, batch: _Batch, drawn: Route, shape: Shape) -> None:
        formula = formula_of(drawn)
        source = self._source(drawn)
        key = digest([self.config.environment, source, formula])
        if key in batch.seen:
            return
        batch.seen.add(key)
        if self._misses(batch, drawn, formula):
            return
        most = _LARGEST_SET if self.config.set_answers else 1
        answers = sorted(first_answers(self.graph, formula, most + 1))
        witnesses = find_witnesses(self.graph, formula, answers) if len(answers) <= most else {}
        path = trace(self.graph, formula, answers[0], witnesses[answers[0]]) if witnesses else None
        if path is None:
            item = {"formula": formula, "answers": answers[:10]}
            batch.failures.append(Failure("synth", Drop.NOT_UNIQUE, f"{len(answers)} answers or more, and not one", item))
        elif path == drawn or not self._misses(batch, path, formula):
            made = self._proven(key, formula, path, shape, source, witnesses)
            if isinstance(made, Task) and self.refuse is not None:
                made = self.refuse(made) or made
            if isinstance(made, Failure):
                batch.failures.append(made)
            else:
                batch.tasks.append(made)

    def _misses(self, batch: _Batch, path: Route, formula: tuple[Triple, ...]) -> bool:
        """Whether a search does not find some document on the way, which is then told."""
        missed = next((hop.query for hop in path if find_document(self.graph, hop, self.retrieve) is None), None)
        if missed is None:
            return False
        reason = f"a search for {missed!r} does not find its document"
        batch.failures.append(Failure("synth", Drop.NOT_FOUND, reason, {"formula": formula, "query": missed}))
        return True

    def _proven(
        self, key: str, formula: tuple[Triple, ...], path: Route, shape: Shape, source: str, witnesses: dict[str, Values]
    ) -> Task | Failure:
        """The task with its proofs, or what they object to."""
        rng = random.Random(seed_from("wording", self.seed, key))
        question = word_question(formula, self.phrasing, self.config.variety, rng)
        proofs = prove(self.graph, formula, question, self.retrieve, witnesses)
        if against := objection(proofs, self.config.allowed_shortcuts, self.config.easy == "drop"):
            return Failure("synth", against[0], against[1], {"formula": formula, "proofs": proofs.record()})
        marks = {"set": True} if len(proofs.answers) > 1 else {}
        return Task(
            key=key,
            environment=self.config.environment,
            question=question,
            answers=proofs.answers,
            formula=formula,
            split=self.config.split,
            hops=len(path),
            constraints=sum(is_constant(node) for triple in formula for node in (triple[0], triple[2])),
            layers=depth(formula),
            provenance={"source": source, "shape": str(shape), "path": [*(hop.entity for hop in path), path[-1].value], **marks},
            proofs=proofs.record(),
        )

    def _source(self, path: Route) -> str:
        """The world or file of a path's first entity: it enters the key, for other worlds use the same names for other things."""
        return next((fact.source for fact in self.graph.about(path[0].entity)), "")
