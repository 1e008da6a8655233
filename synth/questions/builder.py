"""Questions in the WebShaper form over a knowledge graph, each with its proofs.

A candidate is either drawn as a path through stated facts (chains, intersections and unions of a wanted number of hops), or grown from a
seed by layers (`synth.questions.expansion`): a question of two layers can need four documents, and has that many hops. It is kept only if
solving its formula over the whole graph gives exactly one answer (or, where sets are allowed, a few) and a search finds every document on
the way. Its proofs are stored with it: a question with a constraint that is not needed, or with a fact that no document states, is
dropped. What was dropped is returned with its reason; of the random structure that is most, which is what it is there to show.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from synth.formulas.projections import Values, first_answers, witnesses
from synth.formulas.proofs import Proofs, first_witnesses, prove
from synth.formulas.triples import count_constants, depth, formula_digest
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.config import QuestionConfig
from synth.questions.definitions import Definer
from synth.questions.expansion import GrownQuestion, GrowthSpec, Structure, essence, grow, readings
from synth.questions.paths import Hop, Retrieve, Route, find_document, formula_of, trace
from synth.questions.splits import WITNESSES
from synth.questions.walks import Shape, Walker
from synth.questions.wording import Phrasing, word_question
from warehouse.digests import digest, seed_from
from warehouse.records import Document, Failure, Task, Triple

_LARGEST_SET = 20
"""Answers beyond which a set says that the question asks for too little."""


class RejectionReason(StrEnum):
    """Why a candidate is no question, or fewer questions were built than wanted."""

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
    phrasing: Phrasing | None = None,
    known: Iterable[str] = (),
    refuse: Callable[[Task], Failure | None] | None = None,
    split: str = "train",
) -> tuple[list[Task], list[Failure]]:
    """Questions by rising hops (or layers); fewer than wanted, with a `Failure` that says so, where the graph has no more.

    Where `config.count` says how many there must be in all, what is missing of one kind is made up for by the others.

    Args:
        retrieve: first hit of the search that the agent will use. Without it documents are found by their titles alone, and
            there are no intersections or unions.
        allowed: whether an entity may lie on a path (start, way and answer); the second condition of an intersection may not
            be refused. Give `split_of(...) == split` here to part one graph by its entities.
        phrasing: how relations are worded; by default as the graph words them.
        known: the keys of questions that are there already and are not made again.
        refuse: why a question that is proven may not be kept all the same, if so.

    Raises:
        ValueError: intersections, unions or grown questions are wanted without `retrieve`.
    """
    if retrieve is None and (config.intersections or config.unions or config.structure != "paths"):
        raise ValueError("intersections, unions and grown questions need a search by what is known of a document: give retrieve")
    common = (graph, config, split, seed, retrieve, phrasing or Phrasing.of(graph), refuse, set(known))
    if config.structure == "paths":
        return _PathBuilder(*common, Walker(graph, allowed, pivots=retrieve is not None, sets=config.set_answers)).build()
    return _GrownBuilder(*common, Definer(graph, allowed)).build()


def objection(proofs: Proofs, allowed_shortcuts: int, drops_easy: bool) -> tuple[RejectionReason, str] | None:
    """Why a question with these proofs is not kept; None where nothing speaks against it."""
    if proofs.redundant:
        return RejectionReason.REDUNDANT, f"the answers are the same without triple {proofs.redundant[0]}"
    if proofs.constant_edges:
        return RejectionReason.CONSTANT_EDGE, f"triple {proofs.constant_edges[0]} joins two constants"
    if len(proofs.shortcuts) > allowed_shortcuts:
        return RejectionReason.SHORTCUT, f"{len(proofs.shortcuts)} constants stand beside the target"
    if proofs.unsupported:
        return RejectionReason.UNSUPPORTED, f"no document states the fact of triple {proofs.unsupported[0]}"
    if proofs.easy and drops_easy:
        return RejectionReason.EASY, "a search with the question itself brings a document of the answer on top"
    return None


Candidate = TypeVar("Candidate")


@dataclass(slots=True)
class _Builder(ABC, Generic[Candidate]):
    """What the two ways to build have in common: a batch that is filled kind by kind, and the proof of a candidate."""

    graph: KnowledgeGraph
    config: QuestionConfig
    split: str
    seed: int
    retrieve: Retrieve | None
    phrasing: Phrasing
    refuse: Callable[[Task], Failure | None] | None
    known: set[str]
    """Keys of questions that are not made (again)."""

    tasks: list[Task] = field(default_factory=list, init=False)
    failures: list[Failure] = field(default_factory=list, init=False)

    @abstractmethod
    def consider(self, candidate: Candidate) -> None:
        """Add the task of a candidate, or the failure that says why there is none."""

    def fill(self, candidates: Iterable[Candidate], count: int, kind: str, item: dict[str, Any]) -> int:
        """Add up to `count` questions to the batch; how many are missing then. `kind` and `item` describe them in that failure."""
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
        """The document of every hop; None where a search does not find one, which becomes a failure."""
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
        """The key of a question and its source: the world or file of the path's first entity, for other worlds use the same names too."""
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
        """Add the task with its proofs, or what they object to.

        Args:
            worded: the triples that the question puts into words.
            proven: the first witness of every answer.
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
"""The hops and the shape of a question."""


@dataclass(slots=True)
class _PathBuilder(_Builder[tuple[Route, Shape]]):
    """Questions drawn as paths from document to document."""

    walker: Walker

    def build(self) -> tuple[list[Task], list[Failure]]:
        """The questions that the configuration asks for, by rising hops, and the failures."""
        wanted = {(hops, shape): n for hops, count in self.config.wanted().items() for shape, n in _shares(self.config, count) if n}
        missing = {kind: self._fill(kind, count) for kind, count in wanted.items()}
        if self.config.count is not None:
            self._make_up(missing)
        return self.tasks, self.failures

    def consider(self, candidate: tuple[Route, Shape]) -> None:
        """Add the question of a path that was drawn."""
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
            self.failures.append(Failure("synth", RejectionReason.NOT_UNIQUE, f"{len(answers)} answers or more, and not one", item))
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
        """Add questions of other kinds, the nearest in hops first, for those that the graph has too few of."""
        rich = [kind for kind, lacking in missing.items() if not lacking]
        for (hops, shape), lacking in missing.items():
            for kind in sorted(rich, key=lambda kind: abs(kind[0] - hops)) if lacking else ():
                lacking = self._fill(kind, lacking, "in place of", str(shape), str(hops))
                if not lacking:
                    break
                rich.remove(kind)


def _shares(config: QuestionConfig, count: int) -> Iterator[tuple[Shape, int]]:
    """How many questions of each shape make up `count`; they sum to it."""
    unions, intersections = round(count * config.unions), round(count * config.intersections)
    intersections = min(intersections, count - unions)
    yield Shape.CHAIN, count - unions - intersections
    yield Shape.INTERSECTION, intersections
    yield Shape.UNION, unions


@dataclass(slots=True)
class _GrownBuilder(_Builder[GrownQuestion]):
    """Questions grown from a seed."""

    definer: Definer
    seen: set[str] = field(default_factory=set, init=False)
    """Digests of the formulas that were considered."""

    def build(self) -> tuple[list[Task], list[Failure]]:
        """The questions that the configuration asks for, by rising layers, and the failures."""
        missing = {layers: self._fill(layers, count) for layers, count in self.config.wanted().items() if count}
        left = sum(missing.values()) if self.config.count is not None else 0
        for layers in [layers for layers, lacking in missing.items() if not lacking]:
            left = self._fill(layers, left, "in place of others") if left else 0
        return self.tasks, self.failures

    def consider(self, candidate: GrownQuestion) -> None:
        """Add a question that was grown."""
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
