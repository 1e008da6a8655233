"""The corpora of a turn: facts and documents for the lake, and a sample of the documents as plain text to read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

from flows.stages.synthesis.batches import Batch, Made
from flows.stages.synthesis.bench import HELD_OUT_SHARE, Bench
from rl.retrieval.search import passage
from synth.questions.splits import split_of
from synth.trajectories.transcripts import observation
from warehouse import Document, Example
from warehouse.corpora.corpus import Corpus
from warehouse.digests import digest


def corpora(bench: Bench, everything: bool) -> Iterator[Batch]:
    """Facts and documents, and what their reader quarantined; of the training corpus alone, or of `everything`."""
    sources = bench.sources
    chosen = [sources.train, sources.held_out] if everything and not sources.shared else [sources.train]
    for number, corpus in enumerate(chosen):
        yield Batch("corpus", number, partial(_records_of, corpus))


def documents(bench: Bench) -> Iterator[Batch]:
    """A sample of the training corpus as plain text."""
    sources = bench.sources
    seen = [d for d in sources.train.documents if not sources.shared or split_of(d.title, HELD_OUT_SHARE) == "train"]
    chosen = random.Random(bench.seed("documents")).sample(seen, min(len(seen), bench.settings.documents))
    for number, part in bench.in_batches(chosen):
        yield Batch("documents", number, partial(_read_as_text, bench, part))


def _records_of(corpus: Corpus) -> Made:
    return [*corpus.facts, *corpus.documents, *corpus.failures], []


def _read_as_text(bench: Bench, documents: Sequence[Document]) -> Made:
    return bench.clear([_example(document, bench.turn) for document in documents], [])


def _example(document: Document, turn: int) -> Example:
    return Example(digest(["document", document.id, turn]), "document", ((observation(passage(document)), True),), (document.id,), turn)
