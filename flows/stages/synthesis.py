"""Synthesis: from graph and corpus, and from the trajectories of earlier turns, to tasks and training examples.

Suites are drawn once, from entities that training never sees. A turn's questions, plans, reasoning and demonstrations come from
the oracle; from the second turn on, decision records (HAS) and the cold start come from what the policy itself did before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from flows.config import SynthConfig
from flows.runs import StageRun
from flows.stages.sources import Sources, read_sources
from flows.stages.training import WHEEL_ROLLOUTS
from flows.workshop import Workshop
from rl.search import SearchIndex, passage
from synth.demonstrations import build_demonstrations
from synth.fas import build_fas
from synth.graph import KnowledgeGraph
from synth.has import build_has
from synth.questions import build_questions, split_of
from synth.rejection import choose_successes
from synth.transcripts import observation
from warehouse import Document, Example, Failure, Task
from warehouse.corpora.corpus import Corpus
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError

EARLIER = f"{WHEEL_ROLLOUTS} AND wheel_turn < ?"

HELD_OUT_SHARE = 0.2
"""Share of a real graph's entities that only suites may use."""


class Synthesis:
    """The graphs and searches of a home, for the work of one turn."""

    def __init__(self, shop: Workshop, turn: int) -> None:
        self.shop, self.turn = shop, turn
        self.settings: SynthConfig = shop.config.for_turn(turn).synth
        self.sources: Sources = read_sources(shop.config.corpus, shop.config.seed)
        self.train = KnowledgeGraph.of(self.sources.train)
        self.retrieve = first_hit(self.sources.train)

    def seed(self, part: str) -> int:
        """The seed of one part of this turn's work."""
        return seed_from(self.shop.config.seed, self.turn, part)

    def allowed(self, split: str) -> Callable[[str], bool] | None:
        """Which entities the questions of a split may touch; worlds of their own need no such rule."""
        if not self.sources.shared:
            return None
        return lambda entity: split_of(entity, HELD_OUT_SHARE) == split

    def corpora(self) -> list[Any]:
        """Facts and documents, and what their reader quarantined."""
        corpora = [self.sources.train] if self.sources.shared else [self.sources.train, self.sources.held_out]
        return [record for corpus in corpora for part in (corpus.facts, corpus.documents, corpus.failures) for record in part]

    def suites(self) -> tuple[list[Task], list[Failure]]:
        """The held-out tasks of every suite."""
        graph = self.train if self.sources.shared else KnowledgeGraph.of(self.sources.held_out)
        retrieve = self.retrieve if self.sources.shared else first_hit(self.sources.held_out)
        tasks: list[Task] = []
        failures: list[Failure] = []
        for name, questions in self.shop.config.evaluation.suites.items():
            config = questions.model_copy(update={"split": name})
            made, dropped = build_questions(graph, config, self.seed(f"suite {name}"), retrieve, self.allowed("heldout"))
            tasks, failures = tasks + made, failures + dropped
        return tasks, failures

    def questions(self) -> tuple[list[Task], list[Failure]]:
        """The tasks that RL trains on."""
        config = self.settings.webshaper.model_copy(update={"split": "train"})
        return build_questions(self.train, config, self.seed("questions"), self.retrieve, self.allowed("train"))

    def documents(self) -> list[Example]:
        """A sample of the training corpus as plain text."""
        documents = [d for d in self.sources.train.documents if not self.sources.shared or split_of(d.title, HELD_OUT_SHARE) == "train"]
        chosen = random.Random(self.seed("documents")).sample(documents, min(len(documents), self.settings.documents))
        return [_document_example(document, self.turn) for document in chosen]

    def first_order(self) -> tuple[list[Example], list[Failure]]:
        """FAS: plans and reasoning."""
        return build_fas(
            self.train, self.settings.fas, self.seed("fas"), self.retrieve, wheel_turn=self.turn, allowed=self.allowed("train")
        )

    def higher_order(self) -> tuple[list[Example], list[Failure]]:
        """HAS: decision records from a sample of the trajectories of earlier turns, successes and failures."""
        earlier = self.shop.lake.trajectories(EARLIER, [self.turn])
        chosen = random.Random(self.seed("has")).sample(earlier, min(len(earlier), self.settings.has_count))
        tasks = {task.key: task for task in self.shop.lake.tasks(split="train")}
        return build_has(self.train, chosen, tasks, self.settings.has, self.seed("has"), self.retrieve, self.turn)

    def demonstrations(self) -> tuple[list[Example], list[Failure]]:
        """The cold start from the oracle, as good or as mixed as the configuration says."""
        config = self.settings.demonstration_questions.model_copy(update={"split": "demonstration"})
        tasks, dropped = build_questions(self.train, config, self.seed("demonstrations"), self.retrieve, self.allowed("train"))
        examples, failures = build_demonstrations(
            self.train, tasks, self.settings.demonstrations, self.seed("demonstrations"), self.retrieve, wheel_turn=self.turn
        )
        return examples, dropped + failures

    def rejection_sampled(self) -> tuple[list[Example], list[Failure]]:
        """The cold start from the policy's own successes in earlier turns, as sampled."""
        earlier = self.shop.lake.trajectories(f"{EARLIER} AND outcome = 'success'", [self.turn])
        hops = {task.key: task.hops for task in self.shop.lake.tasks(split="train")}
        return choose_successes(earlier, hops, self.settings.rejection_samples, self.seed("rejection"), self.turn), []


def synthesise(shop: Workshop, run: StageRun, turn: int) -> dict[str, Any]:
    """Do the synthesis of a turn and return how much of what was made."""
    work = Synthesis(shop, turn)
    failures: list[Failure] = []
    if turn == 1:
        tasks, dropped = work.suites()
        shop.lake.add([*work.corpora(), *tasks])
        failures += dropped
    made: list[Task | Example] = []
    for part in (work.questions, work.first_order, work.higher_order, work.demonstrations, work.rejection_sampled):
        records, dropped = part()
        made, failures = made + list(records), failures + dropped
    made += work.documents()
    shop.lake.add([*made, *failures])
    figures = _figures(shop, made, failures)
    empty = [name.removeprefix("tasks.") for name, count in figures.items() if name.startswith("tasks.") and not count]
    if empty:
        raise RequestError(
            f"the graph gives no task for {', '.join(empty)}; the reasons are in the lake: "
            f'flywheel sql "SELECT kind, count(*) FROM failures GROUP BY kind" --home {shop.home.root}'
        )
    return figures


def first_hit(corpus: Corpus) -> Callable[[str], Document | None]:
    """The search over a corpus, as a function that gives its best document."""
    index = SearchIndex(corpus.documents)
    return lambda query: next(iter(index.search(query, 1)), None)


def _document_example(document: Document, turn: int) -> Example:
    return Example(digest(["document", document.id, turn]), "document", ((observation(passage(document)), True),), (document.id,), turn)


def _figures(shop: Workshop, made: Sequence[Task | Example], failures: Sequence[Failure]) -> dict[str, Any]:
    counts: dict[str, Any] = {f"tasks.{split}": len(shop.lake.tasks(split=split)) for split in ("train", *shop.config.evaluation.suites)}
    for record in made:
        if isinstance(record, Example):
            counts[f"examples.{record.kind}"] = counts.get(f"examples.{record.kind}", 0) + 1
    return {**counts, "failures": len(failures)}
