"""What the parts of one iteration's synthesis share: the home's corpora, graphs, searches, suites and teacher.

The corpora are a generated world for training and another for the suites, one real graph split by entity, or pages without a graph, which
have no suites of their own. Whatever training shows is
found among the documents that training may see; what the suites ask is proven over those that they search. What no part needs is not built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from eval.judges import Judge, calibrate, unfit_reason
from flows.context import RunContext
from flows.data.decontamination import by_suite
from flows.plan import WHEEL_ROLLOUTS
from flows.stages.synthesis.batches import Made
from rl.envs.base import offered_tools
from rl.envs.search import SearchOptions
from rl.renderers.base import Schema
from rl.retrieval.indexes import as_imperfect, build_index
from rl.retrieval.search import Index, SearchIndex
from synth.config import CorpusConfig, SynthConfig
from synth.corpora.config import SeedsConfig
from synth.corpora.expansion_proofs import KnownFacts
from synth.corpora.linked_passages import LinkedPassages, Walk
from synth.corpora.passages import NameFinder
from synth.corpora.seed_questions import SeedGenerator
from synth.corpora.seed_searches import PassageSearch
from synth.demonstrations.tries import Search
from synth.fas.memory import Memory, remember, statements_brought, statements_in
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import offer
from synth.questions.decontamination import EvaluationIndex
from synth.questions.direct_attempts import DirectAttemptsConfig, DirectModel, PolicyAttempts, TeacherAttempts
from synth.questions.paths import Retrieve, first_hit, first_real_hit
from synth.questions.splits import HELD_OUT, TRAIN, split_of
from synth.teachers.metering import MeteredTeacher, add_counts
from synth.teachers.teacher import Teacher
from synth.worlds.world import generate_world, world_words
from warehouse import TRAINED_SPLITS, Document, DocumentSplit, Example, Failure, Policy, Task
from warehouse.corpora.corpus import Corpus, with_documents
from warehouse.corpora.countries import read_countries
from warehouse.corpora.files import read_documents, read_facts, read_pages, read_wordings
from warehouse.corpora.films import read_films
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.settings import read_options

SEARCH = "search"
"""The environment that demonstrations are played in."""
HELD_OUT_SHARE = 0.2
"""Share of a real graph's entities that only suites may use."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The corpus that is trained on, the one that suites are drawn from, and the words that must be single tokens.

    Where `shared`, both are one real graph, and entities are split instead of worlds; what states a fact about a held-out entity is for
    suites alone.
    """

    train: Corpus
    held_out: Corpus
    words: Sequence[str]

    @property
    def shared(self) -> bool:
        """Whether training and held-out tasks come from one graph."""
        return self.train is self.held_out

    def documents(self, hidden: DocumentSplit) -> list[Document]:
        """All documents but those of the split that is `hidden`."""
        corpora = (self.train,) if self.shared else (self.train, self.held_out)
        return [document for corpus in corpora for document in corpus.documents if document.split is not hidden]


def read_sources(config: CorpusConfig, seed: int) -> Sources:
    """Generate or read the corpora that `config` names; the same configuration and seed give the same corpora."""
    if config.kind == "generated":
        train = generate_world(config.train, "train", seed_from(seed, "train"))
        held_out = generate_world(config.held_out, "heldout", seed_from(seed, "held out"))
        return Sources(train, held_out, world_words())
    if config.kind == "pages":
        pages = read_pages(config.folder)
        return Sources(pages, pages, ())
    if config.kind == "films":
        corpus = read_films(config.folder, config.longest_document)
    else:
        corpus = read_countries(config.folder) if config.kind == "countries" else read_files(config.folder, config.wordings)
    corpus = _split(corpus)
    return Sources(corpus, corpus, ())


def on_side(side: str) -> Callable[[str], bool]:
    """Whether an entity of a graph that training and suites share is on this side of it: `train` or `heldout`."""
    return lambda entity: split_of(entity, HELD_OUT_SHARE) == side


def _split(corpus: Corpus) -> Corpus:
    """The corpus with its documents marked: those that state a fact about a held-out entity, or bear its name, are for suites alone."""
    about: dict[str, set[str]] = {document.id: {document.title} for document in corpus.documents}
    for fact in corpus.facts:
        for identity in fact.documents:
            about.setdefault(identity, set()).add(fact.subject)
    held_out = on_side(HELD_OUT)
    hidden = {identity for identity, names in about.items() if any(map(held_out, names))}
    documents = tuple(
        replace(document, split=DocumentSplit.HELD_OUT if document.id in hidden else DocumentSplit.ALL) for document in corpus.documents
    )
    return replace(corpus, documents=documents)


def read_files(folder: Path, wordings: Path | None = None) -> Corpus:
    """One's own graph and corpus: the one file `facts.*` in `folder`, and the one file `documents.*` or else pages of Markdown and text.

    `wordings` is a file that says how relations are spoken of.

    A fact that names no document is stated by the pages about the one end that name the other.

    Raises:
        RequestError: one of them is missing, there are several, or it cannot be read.
    """
    facts = read_facts(_only(folder, "facts"))
    documents = read_documents(_only(folder, "documents")) if any(folder.glob("documents.*")) else read_pages(folder)
    corpus = with_documents(facts.joined(documents))
    return corpus if wordings is None else replace(corpus, wordings=read_wordings(wordings))


def _only(folder: Path, stem: str) -> Path:
    found = sorted(folder.glob(f"{stem}.*"))
    if len(found) != 1:
        raise RequestError(f"{folder} must hold one file named {stem}.csv, .tsv, .jsonl or .parquet; it holds {len(found)}.")
    return found[0]


EARLIER = f"{WHEEL_ROLLOUTS} AND wheel_turn < ?"
"""Condition on trajectories: the wheel's own of the turns before this one."""
IMPORTED = "stage = 'import'"
"""Condition on trajectories: brought in from elsewhere."""


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """A graph, the first hit of the search over its documents, and the entities that questions may touch (None: all)."""

    graph: KnowledgeGraph
    retrieve: Retrieve
    allowed: Callable[[str], bool] | None


class SynthesisContext:
    """What the parts of one turn's synthesis share."""

    def __init__(self, context: RunContext, turn: int, teacher: Teacher | None = None) -> None:
        self.context, self.turn = context, turn
        self._teacher = teacher
        self.teacher = None if teacher is None else MeteredTeacher(teacher)
        self._counts: dict[str, float] = {}
        self.settings: SynthConfig = context.config.for_turn(turn).synth

    @cached_property
    def sources(self) -> Sources:
        """The corpora of the home, read or generated. Raises RequestError where what is read has changed since the home began."""
        config = self.context.config
        sources = read_sources(config.corpus, config.seed)
        if config.corpus.kind != "generated":
            self.context.home.claim_corpus(sources.train, config.corpus.folder)
        return sources

    @cached_property
    def train(self) -> QuestionSource:
        """What training may see."""
        return self._source(self.sources.train, self.train_index, TRAIN)

    @cached_property
    def held_out(self) -> QuestionSource:
        """What suites are drawn from."""
        index = SearchIndex(self.sources.documents(DocumentSplit.TRAIN))
        if not self.sources.shared:
            return self._source(self.sources.held_out, index, HELD_OUT)
        return QuestionSource(self.train.graph, first_hit(index), self._allowed(HELD_OUT))

    @cached_property
    def evaluation(self) -> EvaluationIndex:
        """The suites as the lake has them, to keep training clear of."""
        return EvaluationIndex.of(self.suites(), self.settings.decontamination)

    def suites(self) -> dict[str, list[Task]]:
        """The tasks of all suites that the lake has: those of the configuration, imported ones, and those of files that were evaluated."""
        return by_suite(self.context.lake.read(Task, f"split NOT IN {TRAINED_SPLITS}"), self.context.config)[0]

    def index_of(self, suites: Iterable[str]) -> EvaluationIndex:
        """The tasks of these suites, as the lake has them, to keep others clear of."""
        tasks = {name: self.context.lake.tasks(split=name) for name in suites}
        return EvaluationIndex.of(tasks, self.settings.decontamination)

    @cached_property
    def train_index(self) -> SearchIndex:
        """The search over the documents that training may see."""
        return SearchIndex(self.sources.documents(DocumentSplit.HELD_OUT))

    @cached_property
    def linked(self) -> LinkedPassages:
        """The passages of the documents that training may see, linked as `synth.seeds` says."""
        config = self.settings.seeds or SeedsConfig()
        return LinkedPassages.of(self.train_index.documents, config.passage_characters, config.sharing)

    @cached_property
    def walks(self) -> list[Walk]:
        """Those over the linked passages that a question is asked about."""
        config = self.settings.seeds or SeedsConfig()
        return self.linked.walks(config.count, config.passages, self.seed("seeds"))

    @cached_property
    def seeder(self) -> SeedGenerator:
        """Who makes questions of walks. Raises RequestError where there is no teacher."""
        config, search = self.settings.seeds or SeedsConfig(), PassageSearch(self.linked)
        return SeedGenerator(self.asked("seeds"), search, self.train_index, config, self.settings.webshaper.environment, self.known_facts)

    @cached_property
    def known_facts(self) -> KnownFacts:
        """The training graph, for whoever writes names and relations in words of their own."""
        return KnownFacts(self.train.graph)

    @cached_property
    def searched(self) -> Index:
        """What rollouts of training tasks search, as imperfect as the configuration says; without that, the search by words."""
        config = self.context.config.rollout.search
        if config.imperfect is None or config.by == "words":
            return as_imperfect(self.train_index, config)
        return build_index(self.train_index.documents, config)

    @cached_property
    def search(self) -> Search:
        """What a search of such a rollout brings."""
        options = self.context.config.rollout.environments.kind(SEARCH).options
        return partial(self.searched.find, k=read_options(SearchOptions, options, SEARCH).documents)

    @cached_property
    def read(self) -> Retrieve:
        """The document that a search of a rollout showed first, where it is one of the corpus and no namesake or stub."""
        return first_real_hit(self.searched, self.train.graph.documents)

    @cached_property
    def memory(self) -> Memory:
        """What is known of the entities that training may touch, from the sources that `fas.memory` names."""
        kinds, memory = self.settings.fas.memory, Memory()
        allowed = self._allowed(TRAIN) or (lambda name: True)
        if "facts" in kinds:
            memory.append(
                statement for name in self.train.graph.subjects if allowed(name) for statement in remember(self.train.graph, name)
            )
        if set(kinds) <= {"facts"}:
            return memory
        documents = self.sources.documents(DocumentSplit.HELD_OUT)
        finder = NameFinder(dict.fromkeys([*self.train.graph.subjects, *(document.title for document in documents)]))
        if "passages" in kinds:
            memory.append(known for known in statements_in(documents, finder) if allowed(known.entity))
        if "results" in kinds:
            runs = self.context.lake.trajectories(f"({EARLIER}) OR {IMPORTED}", [self.turn])
            memory.append(known for known in statements_brought(runs, finder) if allowed(known.entity))
        return memory

    @cached_property
    def answer_judge(self) -> Judge | None:
        """The teacher as judge of answers, where there is one and it passes its calibration."""
        if self._teacher is None:
            return None
        judge = Judge(self._teacher)  # the calibration is counted where it is made
        return None if unfit_reason(judge.name, calibrate(judge)) else Judge(self.asked("fas.answer_judge"))

    @cached_property
    def direct_model(self) -> DirectModel:
        """Who attempts questions without tools; where it is the policy, its engines start here.

        Raises:
            RequestError: there is no teacher, or no policy yet.
        """
        config, seed = self.settings.direct_attempts or DirectAttemptsConfig(), self.seed("direct attempts")
        if config.by == "teacher":
            return TeacherAttempts(self.asked("direct_attempts"), config, seed)
        champion = self.context.champion(before=self.turn)
        folder = self.context.config.policy.folder if champion is None else self.context.folder(champion)
        if folder is None:
            raise RequestError(
                f"{self.context.home.root} has no promoted policy of a turn before {self.turn} that could attempt questions; set "
                "synth.direct_attempts.by = teacher, or set it under later."
            )
        rollouts = self.context.rollouts(folder)
        name = folder.name if champion is None else champion.id
        return PolicyAttempts(name, rollouts.pool, rollouts, rollouts.dialect, config, seed, rollouts.config.concurrency)

    @property
    def reads_text(self) -> bool:
        """Whether anything reads what CPT reads: CPT itself, or the tokenizer of a policy from scratch."""
        config = self.context.config
        return "cpt" in config.wheel.stages or config.policy.path is None

    def asked(self, part: str) -> Teacher:
        """The teacher that `part` asks. Raises RequestError where there is none."""
        if self.teacher is None:
            raise RequestError(f"synth.{part} needs a teacher: set synth.teacher.kind to openai or engine.")
        return self.teacher

    def count(self, **figures: float) -> None:
        """Add to what is counted of the batch that is being made."""
        add_counts(self._counts, figures)

    def counted(self) -> dict[str, float]:
        """What was counted since this was called last: of the teacher, and by `count`."""
        counts, self._counts = self._counts, {}
        if self.teacher is not None:
            add_counts(counts, self.teacher.drain())
        return counts

    def champion(self) -> Policy:
        """The policy that the turns before have promoted last. Raises RequestError where there is none."""
        champion = self.context.champion(before=self.turn)
        if champion is None:
            raise RequestError(
                f"{self.context.home.root} has no promoted policy of a turn before {self.turn} that could propose alternatives."
            )
        return champion

    def seed(self, part: str) -> int:
        """The seed of one part of this turn's work."""
        return seed_from(self.context.config.seed, self.turn, part)

    def keys(self) -> set[str]:
        """The keys of the tasks that are stored."""
        return set(self.context.lake.query("SELECT key FROM tasks").column("key").to_pylist())

    def clear(self, examples: Sequence[Example], failures: Sequence[Failure]) -> Made:
        """The examples that meet no suite, and the failures with those of the others."""
        kept, removed = self.evaluation.clear_examples(examples)
        return self.offered(kept), [*failures, *removed]

    def offered(self, examples: Sequence[Example]) -> list[Example]:
        """The examples with the tools that a rollout of their questions is offered."""
        return [offer(example, self.tools) for example in examples]

    @cached_property
    def tools(self) -> tuple[Schema, ...]:
        """The tools of the environment that questions are asked in."""
        return offered_tools(self.settings.webshaper.environment, self.context.config.rollout.environments, self.searched)

    def in_batches(self, items: Sequence[Any], largest: int | None = None) -> Iterator[tuple[int, Sequence[Any]]]:
        """`items` in pieces of a batch, or of at most `largest`, numbered from 0."""
        largest = min(self.settings.batch, largest or self.settings.batch)
        return enumerate(items[start : start + largest] for start in range(0, len(items), largest))

    def _source(self, corpus: Corpus, index: SearchIndex, split: str) -> QuestionSource:
        return QuestionSource(KnowledgeGraph.of(corpus), first_hit(index), self._allowed(split))

    def _allowed(self, split: str) -> Callable[[str], bool] | None:
        """Which entities the questions of a split may touch; worlds of their own need no such rule."""
        if not self.sources.shared:
            return None
        return on_side(split)
