"""The corpora of a home: a generated world for training and another for the suites, or one real graph split by entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.config import CorpusConfig
from synth.worlds.world import generate_world, world_words
from warehouse.corpora.corpus import Corpus
from warehouse.corpora.countries import read_countries
from warehouse.corpora.films import read_films
from warehouse.corpora.pages import read_pages
from warehouse.corpora.stating import with_documents
from warehouse.corpora.tabular import read_documents, read_facts
from warehouse.digests import seed_from
from warehouse.errors import RequestError


@dataclass(frozen=True, slots=True)
class Sources:
    """The corpus that is trained on, the one that suites are drawn from, and the words that must be single tokens.

    Where `shared`, both are one real graph, and entities are split instead of worlds.
    """

    train: Corpus
    held_out: Corpus
    words: Sequence[str]

    @property
    def shared(self) -> bool:
        """Whether training and held-out tasks come from one graph."""
        return self.train is self.held_out


def read_sources(config: CorpusConfig, seed: int) -> Sources:
    """Generate or read the corpora that `config` names; the same configuration and seed give the same corpora."""
    if config.kind == "generated":
        train = generate_world(config.train, "train", seed_from(seed, "train"))
        held_out = generate_world(config.held_out, "heldout", seed_from(seed, "held out"))
        return Sources(train, held_out, world_words())
    assert config.path is not None, "checked by the configuration"
    if config.kind == "films":
        corpus = read_films(config.path, config.longest_document)
    else:
        corpus = read_countries(config.path) if config.kind == "countries" else read_files(config.path)
    return Sources(corpus, corpus, ())


def read_files(folder: Path) -> Corpus:
    """One's own graph and corpus: the one file `facts.*` in `folder`, and the one file `documents.*` or else pages of Markdown and text.

    A fact that names no document is stated by the pages about the one end that name the other.

    Raises:
        RequestError: one of them is missing, there are several, or it cannot be read.
    """
    facts = read_facts(_only(folder, "facts"))
    documents = read_documents(_only(folder, "documents")) if any(folder.glob("documents.*")) else read_pages(folder)
    return with_documents(facts.joined(documents))


def _only(folder: Path, stem: str) -> Path:
    found = sorted(folder.glob(f"{stem}.*"))
    if len(found) != 1:
        raise RequestError(f"{folder} must hold one file named {stem}.csv, .tsv, .jsonl or .parquet; it holds {len(found)}.")
    return found[0]
