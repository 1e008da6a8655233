"""Synthesis: from graph and corpus, and from the trajectories of earlier turns, to tasks and training examples.

Suites are drawn once, from entities that training never sees. A turn's questions, plans, reasoning and demonstrations come from
the oracle; from the second turn on, decision records (HAS) and the cold start come from what the policy itself did before. Each
part is made in batches, committed as they are made, and one kind can be made alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

from flows.config import SynthConfig
from flows.plan import WHEEL_ROLLOUTS, SynthesisKind
from flows.runs import StageRun
from flows.stages.batches import Batch, Made, dropped_by, sizes, work_off
from flows.stages.question_batches import QuestionSource, question_batches
from flows.stages.sources import Sources, read_sources
from flows.workshop import Workshop
from rl.search import SearchIndex, passage
from synth.fas.jury import Jury
from synth.fas.plans import build_plans
from synth.fas.reasoning import FasConfig, build_fas
from synth.has.model_proposers import TeacherProposer
from synth.has.proposers import OthersProposer
from synth.has.records import HasConfig, build_has
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.decontamination import EvaluationIndex
from synth.questions.rewording import RewordingConfig, reword
from synth.questions.splits import split_of
from synth.questions.wording import Phrasing
from synth.teachers.opening import open_teacher
from synth.teachers.teacher import Teacher
from synth.trajectories.demonstrations import build_demonstrations
from synth.trajectories.rejection import choose_successes
from synth.trajectories.transcripts import observation
from warehouse import Document, Example, Failure, Task, Trajectory
from warehouse.corpora.corpus import Corpus
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError

EARLIER = f"{WHEEL_ROLLOUTS} AND wheel_turn < ?"
IMPORTED = "stage = 'import'"

HELD_OUT_SHARE = 0.2
"""Share of a real graph's entities that only suites may use."""


class Synthesis:
    """The graphs and searches of a home, for the work of one turn; what a part does not need is not built."""

    def __init__(self, shop: Workshop, run: StageRun, turn: int, teacher: Teacher | None = None) -> None:
        self.shop, self.run, self.turn, self.teacher = shop, run, turn, teacher
        self.settings: SynthConfig = shop.config.for_turn(turn).synth
        self.sources: Sources = read_sources(shop.config.corpus, shop.config.seed)

    @cached_property
    def train(self) -> QuestionSource:
        """What training may see."""
        return self._source(self.sources.train, "train")

    @cached_property
    def held_out(self) -> QuestionSource:
        """What suites are drawn from."""
        if not self.sources.shared:
            return self._source(self.sources.held_out, "heldout")
        return QuestionSource(self.train.graph, self.train.retrieve, self._allowed("heldout"))

    @cached_property
    def evaluation(self) -> EvaluationIndex:
        """The suites as the lake has them, to keep training clear of."""
        suites = {name: self.shop.lake.tasks(split=name) for name in self.shop.config.evaluation.suites}
        return EvaluationIndex.of(suites, self.settings.decontamination)

    def seed(self, part: str) -> int:
        """The seed of one part of this turn's work."""
        return seed_from(self.shop.config.seed, self.turn, part)

    def corpora(self, everything: bool) -> Iterator[Batch]:
        """Facts and documents, and what their reader quarantined; of the training corpus alone, or of `everything`."""
        corpora = [self.sources.train, self.sources.held_out] if everything and not self.sources.shared else [self.sources.train]
        for number, corpus in enumerate(corpora):
            yield Batch("corpus", number, partial(_records_of, corpus))

    def suites(self) -> Iterator[Batch]:
        """The held-out tasks of every suite."""
        for name, questions in self.shop.config.evaluation.suites.items():
            config = questions.model_copy(update={"split": name})
            yield from question_batches(f"suite {name}", self.held_out, config, self.seed(f"suite {name}"), self.settings.batch, self._keys)

    def questions(self) -> Iterator[Batch]:
        """The tasks that RL trains on."""
        config = self.settings.webshaper.model_copy(update={"split": "train"})
        seed, refuse = self.seed("questions"), self.evaluation.objection
        yield from question_batches("questions", self.train, config, seed, self.settings.batch, self._keys, refuse)

    def rewordings(self) -> Iterator[Batch]:
        """The questions that RL trains on in a teacher's words."""
        config = self.settings.rewording
        if config is None:
            return
        written = [task for task in self.shop.lake.tasks(split="train") if task.formula and "reworded_from" not in task.provenance]
        for number, tasks in enumerate(_chunks(written, self.settings.batch)):
            yield Batch("rewordings", number, partial(self._reword, tasks, config))

    def documents(self) -> Iterator[Batch]:
        """A sample of the training corpus as plain text."""
        documents = [d for d in self.sources.train.documents if not self.sources.shared or split_of(d.title, HELD_OUT_SHARE) == "train"]
        chosen = random.Random(self.seed("documents")).sample(documents, min(len(documents), self.settings.documents))
        for number, part in enumerate(_chunks(chosen, self.settings.batch)):
            yield Batch("documents", number, partial(self._read_as_text, part))

    def first_order(self) -> Iterator[Batch]:
        """FAS: plans, then reasoning by hops."""
        config = self.settings.fas
        for number, slices in enumerate(sizes(config.plan_slices, self.settings.batch)):
            part = config.model_copy(update={"plan_slices": slices})
            yield Batch("plans", number, partial(self._plans, part, number))
        for hops, count in sorted(config.counts().items()):
            for number, size in enumerate(sizes(count, self.settings.batch)):
                part = config.model_copy(update={"plan_slices": 0, "reasoning": {hops: size}, "lookup_share": 0.0})
                yield Batch(f"reasoning of {hops} hops", number, partial(self._reasoning, part, number))

    def higher_order(self) -> Iterator[Batch]:
        """HAS: decision records from a sample of the trajectories of earlier turns, successes and failures."""
        yield from self._decisions("decisions", EARLIER, [self.turn], self.settings.has, by_graph=True)

    def foreign_decisions(self) -> Iterator[Batch]:
        """HAS from imported runs, which have no graph of their own: the alternatives are what others of them did."""
        config = self.settings.has
        if "oracle" in config.mixture:
            config = config.model_copy(update={"mixture": {"others": 1.0}})
        yield from self._decisions("decisions of imported runs", IMPORTED, [], config, by_graph=False)

    def _decisions(self, part: str, where: str, parameters: list[Any], config: HasConfig, by_graph: bool) -> Iterator[Batch]:
        found = self.shop.lake.trajectories(where, parameters)
        chosen = random.Random(self.seed("has")).sample(found, min(len(found), self.settings.has_count))
        tasks = {task.key: task for task in self.shop.lake.tasks()} if chosen else {}
        others = {"others": OthersProposer(found, tasks)} if chosen and "others" in config.mixture else {}
        for number, runs in enumerate(_chunks(chosen, self.settings.batch)):
            yield Batch(part, number, partial(self._decide, runs, tasks, config, by_graph, others))

    def demonstrations(self) -> Iterator[Batch]:
        """The cold start from the oracle, as good or as mixed as the configuration says."""
        config = self.settings.demonstration_questions.model_copy(update={"split": "demonstration"})
        seed, refuse = self.seed("demonstrations"), self.evaluation.objection
        for batch in question_batches("demonstrations", self.train, config, seed, self.settings.batch, self._demonstrated, refuse):
            yield Batch(batch.part, batch.number, partial(self._demonstrate, batch))

    def rejection_sampled(self) -> Iterator[Batch]:
        """The cold start from the policy's own successes in earlier turns, as sampled."""
        yield Batch("rejection sampling", 0, self._reject)

    def _reword(self, tasks: Sequence[Task], config: RewordingConfig) -> Made:
        if self.teacher is None:
            raise RequestError("synth.rewording needs a teacher: set synth.teacher.kind to openai or engine.")
        made, failures = reword(tasks, self.teacher, config, self.seed("rewording"), self.train.graph, self.train.retrieve)
        kept, removed = self.evaluation.clear_tasks(made)
        return kept, [*failures, *removed]

    def _source(self, corpus: Corpus, split: str) -> QuestionSource:
        return QuestionSource(KnowledgeGraph.of(corpus), first_hit(corpus), self._allowed(split))

    def _allowed(self, split: str) -> Callable[[str], bool] | None:
        """Which entities the questions of a split may touch; worlds of their own need no such rule."""
        if not self.sources.shared:
            return None
        return lambda entity: split_of(entity, HELD_OUT_SHARE) == split

    def _keys(self) -> set[str]:
        """The keys of the tasks that are stored."""
        return set(self.shop.lake.query("SELECT key FROM tasks").column("key").to_pylist())

    def _demonstrated(self) -> set[str]:
        """The keys of the tasks that this turn's demonstrations show."""
        sql = "SELECT DISTINCT sources[1] AS key FROM examples WHERE kind = 'trajectory' AND wheel_turn = ?"
        return set(self.shop.lake.query(sql, [self.turn]).column("key").to_pylist())

    def _read_as_text(self, documents: Sequence[Document]) -> Made:
        return self._cleared([_document_example(document, self.turn) for document in documents], [])

    def _plans(self, config: FasConfig, number: int) -> Made:
        graph, retrieve, allowed = self.train.graph, self.train.retrieve, self.train.allowed
        seed, phrasing = self._fas_seed(number), Phrasing.of(graph)
        jury = Jury(self.teacher) if config.judge and self.teacher is not None else None
        plans = build_plans(graph, config.plan_wishes(), seed, retrieve, phrasing, self.turn, allowed, jury)
        kept, failures = self._cleared(*plans)
        return (kept, failures) if jury is None else ([*kept, *jury.checks], [*failures, *jury.failures])

    def _reasoning(self, config: FasConfig, number: int) -> Made:
        graph, retrieve, allowed = self.train.graph, self.train.retrieve, self.train.allowed
        seed, teacher = self._fas_seed(number), self.teacher
        return self._cleared(*build_fas(graph, config, seed, retrieve, wheel_turn=self.turn, allowed=allowed, teacher=teacher))

    def _fas_seed(self, number: int) -> int:
        return seed_from(self.seed("fas"), number) if number else self.seed("fas")

    def _cleared(self, examples: Sequence[Example], failures: Sequence[Failure]) -> Made:
        kept, removed = self.evaluation.clear_examples(examples)
        return kept, [*failures, *removed]

    def _decide(
        self, runs: Sequence[Trajectory], tasks: dict[str, Task], config: HasConfig, by_graph: bool, others: dict[str, OthersProposer]
    ) -> Made:
        graph, retrieve = (self.train.graph, self.train.retrieve) if by_graph else (None, None)
        taught = {"teacher": TeacherProposer(self.teacher, seed=self.seed("has"))} if self.teacher is not None else {}
        return build_has(graph, runs, tasks, config, self.seed("has"), retrieve, self.turn, {**others, **taught})

    def _demonstrate(self, questions: Batch) -> Made:
        tasks, dropped = questions.make()
        config, seed = self.settings.demonstrations, self.seed("demonstrations")
        shown = [task for task in tasks if isinstance(task, Task)]
        examples, failures = build_demonstrations(self.train.graph, shown, config, seed, self.train.retrieve, wheel_turn=self.turn)
        return examples, [*dropped, *failures]

    def _reject(self) -> Made:
        earlier = self.shop.lake.trajectories(f"{EARLIER} AND outcome = 'success'", [self.turn])
        hops = {task.key: task.hops for task in self.shop.lake.tasks(split="train")}
        return choose_successes(earlier, hops, self.settings.rejection_samples, self.seed("rejection"), self.turn), []

    def parts(self, kind: SynthesisKind) -> Iterator[Batch]:
        """All batches of one kind of work, in their order."""
        if kind != "has" and (self.turn == 1 or kind != "all"):
            yield from self.corpora(everything=kind == "all")
        if kind == "all" and self.turn == 1:
            yield from self.suites()
        if kind in ("all", "webshaper"):
            yield from self.questions()
            yield from self.rewordings()
        if kind in ("all", "fas"):
            yield from self.first_order()
        if kind in ("all", "has"):
            yield from self.higher_order()
        if kind == "has":
            yield from self.foreign_decisions()
        if kind == "all":
            for part in (self.demonstrations, self.rejection_sampled, self.documents):
                yield from part()


def synthesise(shop: Workshop, run: StageRun, turn: int, kind: SynthesisKind = "all") -> dict[str, Any]:
    """Do the synthesis of a turn, or one kind of it alone, and return how much there is of each thing."""
    if kind == "has" and not _count(shop, "trajectories", f"({EARLIER}) OR {IMPORTED}", [turn]):
        raise RequestError(f"{shop.home.root} has no trajectory of earlier turns and none imported; bring some in by `flywheel import`.")
    settings = shop.config.for_turn(turn).synth
    wanted = settings.teacher is not None and (kind != "webshaper" or settings.rewording is not None)
    with open_teacher(settings.teacher, shop.lake) if settings.teacher is not None and wanted else nullcontext() as teacher:
        work_off(run, Synthesis(shop, run, turn, teacher).parts(kind))
    splits = {"all": ("train", *shop.config.evaluation.suites), "webshaper": ("train",)}.get(kind, ())
    figures = {f"tasks.{split}": _count(shop, "tasks", "split = ?", [split]) for split in splits}
    empty = [name.removeprefix("tasks.") for name, count in figures.items() if not count]
    if empty:
        raise RequestError(
            f"the graph gives no task for {', '.join(empty)}; the reasons are in the lake: "
            f'flywheel sql "SELECT kind, count(*) FROM failures GROUP BY kind" --home {shop.home.root}'
        )
    return {**figures, **_examples_by_kind(shop, turn), "failures": dropped_by(run)}


def first_hit(corpus: Corpus) -> Callable[[str], Document | None]:
    """The search over a corpus, as a function that gives its best document."""
    index = SearchIndex(corpus.documents)
    return lambda query: next(iter(index.search(query, 1)), None)


def _records_of(corpus: Corpus) -> Made:
    return [*corpus.facts, *corpus.documents, *corpus.failures], []


def _chunks(items: Sequence[Any], largest: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + largest] for start in range(0, len(items), largest))


def _document_example(document: Document, turn: int) -> Example:
    return Example(digest(["document", document.id, turn]), "document", ((observation(passage(document)), True),), (document.id,), turn)


def _count(shop: Workshop, table: str, where: str, parameters: Sequence[Any]) -> int:
    return int(shop.lake.query(f"SELECT count(*) AS n FROM {table} WHERE {where}", parameters).column("n")[0].as_py())


def _examples_by_kind(shop: Workshop, turn: int) -> dict[str, int]:
    rows = shop.lake.query("SELECT kind, count(*) AS n FROM examples WHERE wheel_turn = ? GROUP BY kind ORDER BY kind", [turn])
    return {f"examples.{row['kind']}": row["n"] for row in rows.to_pylist()}
