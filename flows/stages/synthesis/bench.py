"""The bench that synthesis works at: a home's graphs, searches, suites and teacher, for one turn; what no part needs is not built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from flows.config import SynthConfig
from flows.plan import WHEEL_ROLLOUTS
from flows.stages.sources import Sources, read_sources
from flows.stages.synthesis.batches import Made
from flows.stages.synthesis.question_batches import QuestionSource
from flows.workshop import Workshop
from rl.retrieval.search import SearchIndex
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.decontamination import EvaluationIndex
from synth.questions.paths import first_hit
from synth.questions.splits import split_of
from synth.teachers.teacher import Teacher
from warehouse import Example, Failure, Policy
from warehouse.corpora.corpus import Corpus
from warehouse.digests import seed_from
from warehouse.errors import RequestError

EARLIER = f"{WHEEL_ROLLOUTS} AND wheel_turn < ?"
"""Condition on trajectories: the wheel's own of the turns before this one."""

HELD_OUT_SHARE = 0.2
"""Share of a real graph's entities that only suites may use."""


class Bench:
    """What the parts of one turn's synthesis share."""

    def __init__(self, shop: Workshop, turn: int, teacher: Teacher | None = None) -> None:
        self.shop, self.turn, self.teacher = shop, turn, teacher
        self.settings: SynthConfig = shop.config.for_turn(turn).synth
        self.sources: Sources = read_sources(shop.config.corpus, shop.config.seed)

    @cached_property
    def train(self) -> QuestionSource:
        """What training may see."""
        return self._source(self.sources.train, self.train_index, "train")

    @cached_property
    def held_out(self) -> QuestionSource:
        """What suites are drawn from."""
        if not self.sources.shared:
            return self._source(self.sources.held_out, SearchIndex(self.sources.held_out.documents), "heldout")
        return QuestionSource(self.train.graph, self.train.retrieve, self._allowed("heldout"))

    @cached_property
    def evaluation(self) -> EvaluationIndex:
        """The suites as the lake has them, to keep training clear of."""
        suites = {name: self.shop.lake.tasks(split=name) for name in self.shop.config.evaluation.suites}
        return EvaluationIndex.of(suites, self.settings.decontamination)

    @cached_property
    def train_index(self) -> SearchIndex:
        """The search over the documents that training may see."""
        return SearchIndex(self.sources.train.documents)

    def asked(self, part: str) -> Teacher:
        """The teacher that `part` asks. Raises RequestError where there is none."""
        if self.teacher is None:
            raise RequestError(f"synth.{part} needs a teacher: set synth.teacher.kind to openai or engine.")
        return self.teacher

    def champion(self) -> Policy:
        """The policy that the turns before have promoted last. Raises RequestError where there is none."""
        champion = self.shop.champion(before=self.turn)
        if champion is None:
            raise RequestError(
                f"{self.shop.home.root} has no promoted policy of a turn before {self.turn} that could propose alternatives."
            )
        return champion

    def seed(self, part: str) -> int:
        """The seed of one part of this turn's work."""
        return seed_from(self.shop.config.seed, self.turn, part)

    def keys(self) -> set[str]:
        """The keys of the tasks that are stored."""
        return set(self.shop.lake.query("SELECT key FROM tasks").column("key").to_pylist())

    def clear(self, examples: Sequence[Example], failures: Sequence[Failure]) -> Made:
        """The examples that meet no suite, and the failures with those of the others."""
        kept, removed = self.evaluation.clear_examples(examples)
        return kept, [*failures, *removed]

    def in_batches(self, items: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """`items` in pieces of a batch, numbered from 0."""
        largest = self.settings.batch
        return enumerate(items[start : start + largest] for start in range(0, len(items), largest))

    def _source(self, corpus: Corpus, index: SearchIndex, split: str) -> QuestionSource:
        return QuestionSource(KnowledgeGraph.of(corpus), first_hit(index), self._allowed(split))

    def _allowed(self, split: str) -> Callable[[str], bool] | None:
        """Which entities the questions of a split may touch; worlds of their own need no such rule."""
        if not self.sources.shared:
            return None
        return lambda entity: split_of(entity, HELD_OUT_SHARE) == split
