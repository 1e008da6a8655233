"""A home's corpora, with their graphs and searches.

A home has a generated world for training and another for suites, or one real graph split by entity, or pages without a graph and without
generated suites. Training sees only what is found in its own documents. Suites are verified over the documents that they search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from flows.context import RunContext
from rl.envs.base import offered_tools
from rl.envs.search import SearchOptions
from rl.renderers.base import Schema
from rl.retrieval.indexes import as_imperfect, build_index
from rl.retrieval.search import Index, SearchIndex
from synth.config import CorpusConfig
from synth.corpora.proposals import KnownFacts
from synth.demonstrations.oracle import Search
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.decontamination import HELD_OUT, TRAIN, split_of
from synth.questions.paths import Retrieve, first_hit, first_real_hit
from synth.worlds.world import generate_world, world_words
from warehouse import Document, DocumentSplit
from warehouse.corpora.corpus import Corpus, with_documents
from warehouse.corpora.countries import read_countries
from warehouse.corpora.files import read_documents, read_facts, read_pages, read_wordings
from warehouse.corpora.films import read_films
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.settings import read_options

SEARCH = "search"
"""Environment of the demonstrations."""
HELD_OUT_SHARE = 0.2
"""Share of a real graph's entities held out for suites."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The training corpus, the suites' corpus, and words that must be single tokens.

    If `shared`, both are one real graph split by entity; documents that state a fact about a held-out entity are reserved for suites.
    """

    train: Corpus
    held_out: Corpus
    words: Sequence[str]

    @property
    def shared(self) -> bool:
        return self.train is self.held_out

    def documents(self, hidden: DocumentSplit) -> list[Document]:
        """Return all documents except those of the split `hidden`."""
        corpora = (self.train,) if self.shared else (self.train, self.held_out)
        return [document for corpus in corpora for document in corpus.documents if document.split is not hidden]


def read_sources(config: CorpusConfig, seed: int) -> Sources:
    """Generate or read the corpora of `config`, deterministically in configuration and seed."""
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
    """Return a predicate for entities of a shared graph on a side, `train` or `heldout`."""
    return lambda entity: split_of(entity, HELD_OUT_SHARE) == side


def _split(corpus: Corpus) -> Corpus:
    """Reserve documents for suites that state a fact about a held-out entity or have its name as title."""
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
    """Read a user's graph and corpus from `folder`: one file `facts.*`, and one file `documents.*` or else Markdown and text pages.

    A fact without documents is attributed to the pages about one of its entities that name the other. `wordings` is a file with the wording
    of relations.

    Raises:
        RequestError: A file is missing, ambiguous or malformed.
    """
    facts = read_facts(_only(folder, "facts"))
    documents = read_documents(_only(folder, "documents")) if any(folder.glob("documents.*")) else read_pages(folder)
    corpus = with_documents(facts.joined(documents))
    return corpus if wordings is None else replace(corpus, wordings=read_wordings(wordings))


def _only(folder: Path, stem: str) -> Path:
    found = sorted(folder.glob(f"{stem}.*"))
    if len(found) != 1:
        raise RequestError(f"{folder} must have exactly one file named {stem}.csv, .tsv, .jsonl or .parquet; it has {len(found)}.")
    return found[0]


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """A graph, the first hit of the search over its documents, and the entities that questions may touch (None: all)."""

    graph: KnowledgeGraph
    retrieve: Retrieve
    allowed: Callable[[str], bool] | None


@dataclass(frozen=True)
class Material:
    """Corpora, graphs and searches of one iteration, each built on first use."""

    context: RunContext
    turn: int

    @cached_property
    def sources(self) -> Sources:
        """The corpora, read or generated. Raises RequestError if the files have changed since the home was created."""
        config = self.context.config
        sources = read_sources(config.corpus, config.seed)
        if config.corpus.kind != "generated":
            self.context.home.claim_corpus(sources.train, config.corpus.folder)
        return sources

    @cached_property
    def train(self) -> QuestionSource:
        """What training may see."""
        corpus = self.sources.train
        seen = corpus if self.context.config.corpus.trains_on_facts else replace(corpus, facts=())
        return QuestionSource(KnowledgeGraph.of(seen), first_hit(self.train_index), self.allowed(TRAIN))

    @cached_property
    def held_out(self) -> QuestionSource:
        """What suites are drawn from."""
        index = SearchIndex(self.sources.documents(DocumentSplit.TRAIN))
        same = self.sources.shared and self.context.config.corpus.trains_on_facts
        graph = self.train.graph if same else KnowledgeGraph.of(self.sources.held_out)
        return QuestionSource(graph, first_hit(index), self.allowed(HELD_OUT))

    def allowed(self, side: str) -> Callable[[str], bool] | None:
        """Return the predicate for entities that a side's questions may touch; None (all) for separate worlds."""
        return on_side(side) if self.sources.shared else None

    @cached_property
    def train_index(self) -> SearchIndex:
        """Search over the documents that training may see."""
        return SearchIndex(self.sources.documents(DocumentSplit.HELD_OUT))

    @cached_property
    def known_facts(self) -> KnownFacts:
        """The training graph, for lookups with a teacher's spelling of names and relations."""
        return KnownFacts(self.train.graph)

    @cached_property
    def searched(self) -> Index:
        """The index that rollouts of training tasks search."""
        config = self.context.config.rollout.search
        if config.imperfect is None or config.by == "words":
            return as_imperfect(self.train_index, config)
        return build_index(self.train_index.documents, config)

    @cached_property
    def search(self) -> Search:
        """Search of a rollout, with its number of results."""
        options = self.context.config.rollout.environments.kind(SEARCH).options
        return partial(self.searched.find, k=read_options(SearchOptions, options, SEARCH).documents)

    @cached_property
    def read(self) -> Retrieve:
        """First hit of a rollout's search, if it is a document of the corpus and not a distractor."""
        return first_real_hit(self.searched, self.train.graph.documents)

    @cached_property
    def tools(self) -> tuple[Schema, ...]:
        config = self.context.config
        environment = config.for_turn(self.turn).synth.webshaper.environment
        return offered_tools(environment, config.rollout.environments, self.searched)
