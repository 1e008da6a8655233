"""Questions in the WebShaper form over a knowledge graph: chains, intersections and unions of a wanted depth.

A question is drawn as a path through stated facts, written as a formula, and kept only if solving that formula over the whole graph
gives exactly one answer and a search finds every document on the way. What was dropped is returned with its reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from pydantic import Field, model_validator

from rl.config import Section
from synth.formulas import depth, is_constant
from synth.graph import KnowledgeGraph
from synth.paths import Retrieve, Route, find_document, formula_of, trace
from synth.projections import solve
from synth.walks import Shape, Walker
from synth.wording import Phrasing, word_question
from warehouse.digests import digest, seed_from
from warehouse.records import Failure, Task, Triple


class QuestionConfig(Section):
    """How many questions of which kind."""

    counts: dict[int, int] = Field(default_factory=lambda: {1: 100, 2: 100, 3: 100, 4: 100})
    """Questions wanted by hops (1 to 6): the number of documents that must be read."""
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that begin with an entity of which two things are known instead of its name."""
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that begin so and leave one of the two things open between two values."""
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share that ask for an entity itself, among the questions whose last document is found by two things known of it."""
    variety: int = Field(default=1, ge=1, le=3)
    """How freely the questions are worded; see `synth.wording`."""
    split: str = "train"
    environment: str = "search"

    @model_validator(mode="after")
    def _check(self) -> QuestionConfig:
        if self.intersections + self.unions > 1:
            raise ValueError("intersections and unions are shares of all questions: together at most 1")
        if any(hops not in range(1, 7) or count < 0 for hops, count in self.counts.items()):
            raise ValueError("counts has hops from 1 to 6 and no negative number")
        return self


class Drop(StrEnum):
    """Why a candidate is no question, or a wish was not met."""

    NOT_UNIQUE = "not_unique"
    NOT_FOUND = "not_found_by_search"
    SHORTFALL = "shortfall"


@dataclass(slots=True)
class _Batch:
    """What has been built so far; `seen` also holds the keys of the candidates that were dropped."""

    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


@cache
def split_of(entity: str, heldout_share: float, salt: str = "") -> str:
    """The split of one entity of a single real graph, `train` or `heldout`, by a hash that no seed changes."""
    return "heldout" if seed_from("split", salt, entity) < heldout_share * 0x80000000 else "train"


def build_questions(
    graph: KnowledgeGraph,
    config: QuestionConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    allowed: Callable[[str], bool] | None = None,
    phrasing: Phrasing | None = None,
) -> tuple[list[Task], list[Failure]]:
    """Questions by rising hops; fewer than wanted, with a `Failure` that says so, where the graph has no more.

    Args:
        retrieve: first hit of the search that the agent will use. Without it documents are found by their titles alone, and
            there are no intersections or unions.
        allowed: whether an entity may lie on a path (start, way and answer); the second condition of an intersection may not
            be refused. Give `split_of(...) == split` here to part one graph by its entities.
        phrasing: how relations are worded; by default as the generated worlds word them.

    Raises:
        ValueError: intersections or unions are wanted without `retrieve`.
    """
    if retrieve is None and (config.intersections or config.unions):
        raise ValueError("intersections and unions need a search that finds documents by what is known of them: give retrieve")
    builder = _Builder(graph, config, seed, retrieve, phrasing or Phrasing.of(graph))
    walker = Walker(graph, allowed, pivots=retrieve is not None)
    batch = _Batch()
    for hops, count in sorted(config.counts.items()):
        for shape, share in _shares(config, count):
            builder.fill(batch, walker, shape, hops, share)
    return batch.tasks, batch.failures


def _shares(config: QuestionConfig, count: int) -> Iterator[tuple[Shape, int]]:
    """How many questions of each shape make up `count`; they sum to it."""
    unions, intersections = round(count * config.unions), round(count * config.intersections)
    intersections = min(intersections, count - unions)
    yield Shape.CHAIN, count - unions - intersections
    yield Shape.INTERSECTION, intersections
    yield Shape.UNION, unions


@dataclass(frozen=True, slots=True)
class _Builder:
    graph: KnowledgeGraph
    config: QuestionConfig
    seed: int
    retrieve: Retrieve | None
    phrasing: Phrasing

    def fill(self, batch: _Batch, walker: Walker, shape: Shape, hops: int, count: int) -> None:
        """Add up to `count` questions to the batch."""
        have = len(batch.tasks)
        rng = random.Random(seed_from("questions", self.seed, self.config.split, shape, hops))
        for path in walker.paths(shape, hops, self.config.identify, rng, wanted=count) if count else ():
            self._consider(batch, path, shape)
            if len(batch.tasks) - have >= count:
                return
        missing = count - (len(batch.tasks) - have)
        if missing:
            reason = f"{missing} of {count} {shape} questions of {hops} hops are missing: no more were found"
            batch.failures.append(Failure("synth", Drop.SHORTFALL, reason, {"hops": hops, "shape": str(shape), "missing": missing}))

    def _consider(self, batch: _Batch, drawn: Route, shape: Shape) -> None:
        formula = formula_of(drawn)
        source = self._source(drawn)
        key = digest([self.config.environment, source, formula])
        if key in batch.seen:
            return
        batch.seen.add(key)
        answers = sorted(solve(self.graph, formula))
        path = trace(self.graph, formula, answers[0]) if len(answers) == 1 else None
        if path is None:
            item = {"formula": formula, "answers": answers[:10]}
            batch.failures.append(Failure("synth", Drop.NOT_UNIQUE, f"{len(answers)} answers and not one", item))
        elif missed := next((hop.query for hop in path if find_document(self.graph, hop, self.retrieve) is None), None):
            reason = f"a search for {missed!r} does not find its document"
            batch.failures.append(Failure("synth", Drop.NOT_FOUND, reason, {"formula": formula, "query": missed}))
        else:
            batch.tasks.append(self._task(key, formula, path, shape, source))

    def _task(self, key: str, formula: tuple[Triple, ...], path: Route, shape: Shape, source: str) -> Task:
        rng = random.Random(seed_from("wording", self.seed, key))
        return Task(
            key=key,
            environment=self.config.environment,
            question=word_question(formula, self.phrasing, self.config.variety, rng),
            answers=(path[-1].value,),
            formula=formula,
            split=self.config.split,
            hops=len(path),
            constraints=sum(is_constant(node) for triple in formula for node in (triple[0], triple[2])),
            layers=depth(formula),
            provenance={"source": source, "shape": str(shape), "path": [*(hop.entity for hop in path), path[-1].value]},
        )

    def _source(self, path: Route) -> str:
        """The world or file of a path's first entity: it enters the key, for other worlds use the same names for other things."""
        return next((fact.source for fact in self.graph.about(path[0].entity)), "")
