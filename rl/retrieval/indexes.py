"""Document indexes for training tasks and for suites, and imperfect search over them.

`Document.split` says which index contains a document; documents that held-out questions ask about are not in the training index.

An imperfect search wraps another index: the right document ranks second or third, behind its namesake or stub, or nothing is found.

asked        `Amber Stone page 2` is the second page of `Amber Stone`
found        results of the wrapped index, best first; each document is followed by its namesake and its stub
displaced    for some queries the best document moves to second or third place
empty        some queries find nothing, on any page
foreign      some documents are surrounded by unrelated page content

Displacement and emptiness depend on the seed and the query's words, a document's companions on the seed and its id. There is no state, so
all samples of a task see the same search. A policy benefits from reading on, rephrasing, and checking what a document is about. The best
document of a non-empty query is always among the first three.

A namesake has the document's title and the text of another document that shares no words with it, except names and words that occur in more
than half of all documents: in a generated world one of another type, which answers no question about this document. Real text has hardly
any. A stub is the first half of a document's statements. Neither is in the lake: their ids are the document's with `#namesake` or `#stub`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rl.retrieval.config import ImperfectSearchConfig, SearchConfig
from rl.retrieval.search import Hits, Index, Miss, SearchIndex, passage, words_of
from rl.retrieval.vectors import build_vectors
from warehouse.digests import seed_from
from warehouse.records import Document, DocumentSplit, Task

AMONG = 3
"""Number of ranks that the best document may take."""
MAX_PAGE = 99
NAMESAKE, STUB = "#namesake", "#stub"
_DONORS = 32
"""Number of documents considered as text of a namesake."""
_MENTIONS = 100
"""Maximum occurrences replaced by the namesake's title; with a one-letter title the text would otherwise explode."""
_CLUTTER = (
    "SKIP TO MAIN CONTENT", "MENU / SEARCH / SIGN IN", "we value your privacy: accept all cookies?", "SALE!!! up to 70% off today only >>",
    "share this on:", "3 min read * 1,204 views", "related: ten tricks you won't believe", "(c) all rights reserved",
    "ERR_AD_BLOCKED retry", "subscribe 4 free", "print | e-mail | pdf", "<- previous / next ->", "loading... 87%",
    "terms & conditions apply",
)  # fmt: skip
"""Page content placed around a text."""
_SENTENCES = re.compile(r"(?<=[.!?])\s+")


class ImperfectIndex:
    """Searches `index` imperfectly, for rollouts."""

    paged = True

    def __init__(self, index: Index, config: ImperfectSearchConfig) -> None:
        self._index, self._config = index, config
        self._common = _common_words(index.documents) if config.namesakes else frozenset[str]()

    @property
    def documents(self) -> tuple[Document, ...]:
        """Documents of the wrapped index; namesakes and stubs are created on demand."""
        return self._index.documents

    def find(self, query: str, k: int = 1) -> Hits:
        """The page of `k` documents that `query` asks for, or why there is none. Never raises."""
        asked, page = split_page(query)
        hits = self._index.find(asked, max(page * k, AMONG))
        if hits.miss is not None:
            return hits
        rng = random.Random(seed_from("imperfect search", self._config.seed, " ".join(asked.casefold().split())))
        empty, displaced, place = rng.random() < self._config.empty, rng.random() < self._config.displaced, rng.randrange(1, AMONG)
        if empty:
            return Hits((), Miss.NO_HIT)
        ranked = list(islice((each for document in hits.documents for each in (document, *self._likes(document))), max(page * k, AMONG)))
        if displaced:
            ranked.insert(min(place, len(ranked) - 1), ranked.pop(0))
        found = tuple(map(self._as_page, ranked[(page - 1) * k : page * k]))
        return Hits(found, None if found else Miss.NO_FURTHER)

    def scored(self, query: str, k: int = 1) -> list[tuple[Document, float]]:
        """Documents of `find` with scores; namesakes and stubs have their document's."""
        asked, page = split_page(query)
        scores = {document.id: score for document, score in self._index.scored(asked, max(page * k, AMONG))}
        found = self.find(query, k).documents
        return [(each, scores[each.id.removesuffix(NAMESAKE).removesuffix(STUB)]) for each in found]

    def _likes(self, document: Document) -> Iterator[Document]:
        """Yield a document's namesake and stub, if any."""
        if self._draws("namesake", document, self._config.namesakes) and (namesake := self._namesake(document)) is not None:
            yield namesake
        if self._draws("stub", document, self._config.stubs) and (stub := stub_of(document)) is not None:
            yield stub

    def _as_page(self, document: Document) -> Document:
        if not self._draws("foreign", document, self._config.foreign):
            return document
        return replace(document, text=cluttered(document.text, random.Random(seed_from("page of", self._config.seed, document.id))))

    def _draws(self, what: str, document: Document, share: float) -> bool:
        return share > 0 and random.Random(seed_from(what, self._config.seed, document.id)).random() < share

    def _namesake(self, document: Document) -> Document | None:
        rng = random.Random(seed_from("namesake of", self._config.seed, document.id))
        own = self._telling(document)
        for donor in rng.choices(self.documents, k=_DONORS):
            if donor.title and document.title not in passage(donor) and own.isdisjoint(self._telling(donor)):
                text = donor.text.replace(donor.title, document.title, _MENTIONS)
                return replace(document, id=f"{document.id}{NAMESAKE}", text=text)
        return None

    def _telling(self, document: Document) -> set[str]:
        """Words that characterize a document, without names."""
        return set(words_of(document.text)).difference(self._common, words_of(document.title))


def split_page(query: str) -> tuple[str, int]:
    """Split off the page number: («Amber Stone», 2) from «Amber Stone page 2»."""
    words = query.split()
    if len(words) > 2 and words[-2].casefold() == "page" and words[-1].isascii() and words[-1].isdecimal():
        page = int(words[-1][:4])
        if 1 <= page <= MAX_PAGE:
            return " ".join(words[:-2]), page
    return query, 1


def cluttered(text: str, rng: random.Random) -> str:
    """Surround a text on each side with one or two pieces of page content and a code."""
    before, after = ([*rng.sample(_CLUTTER, rng.randint(1, 2)), f"#{rng.getrandbits(24):06x}"] for _ in range(2))
    return f"{' '.join(before)} {text} {' '.join(after)}"


def stub_of(document: Document) -> Document | None:
    """First half of a document's sentences, or of the clauses of its only sentence; None if there is only one clause."""
    head = document.title if document.text.startswith(document.title) else ""
    rest = document.text[len(head) :]
    pieces, glue = _SENTENCES.split(rest.strip()), " "
    if len(pieces) < 2:
        pieces, glue = rest.strip().rstrip(".").split(", "), ", "
    if len(pieces) < 2:
        return None
    kept = glue.join(pieces[: len(pieces) // 2])
    space = " " if rest[:1].isspace() else ""
    return replace(document, id=f"{document.id}{STUB}", text=f"{head}{space}{kept}{'' if kept.endswith(('.', '!', '?')) else '.'}")


def _common_words(documents: Sequence[Document]) -> frozenset[str]:
    """Words that occur in more than half of the documents."""
    counts = Counter(word for document in documents for word in set(words_of(document.text)))
    return frozenset(word for word, count in counts.items() if 2 * count > len(documents))


@dataclass(frozen=True, slots=True)
class Indexes:
    """Index for training tasks and index for suites; None without documents."""

    train: Index | None = None
    held_out: Index | None = None

    def of(self, task: Task) -> Index | None:
        return self.train if task.is_trained_on else self.held_out

    @property
    def any(self) -> Index | None:
        """Either index, for probing environments."""
        return self.held_out if self.train is None else self.train


def build_index(documents: Iterable[Document], config: SearchConfig) -> Index:
    """Build an index over `documents`, lexical or by vectors, imperfect if configured.

    Raises:
        RequestError: no such encoder, or its library is not installed.
    """
    return as_imperfect(SearchIndex(documents) if config.by == "words" else build_vectors(documents, config), config)


def as_imperfect(index: Index, config: SearchConfig) -> Index:
    return index if config.imperfect is None else ImperfectIndex(index, config.imperfect)


def build_indexes(documents: Iterable[Document], config: SearchConfig | None = None) -> Indexes:
    """Build both indexes over `documents`; one shared object if all documents belong to both. Raises as `build_index` does."""
    config, everything = config or SearchConfig(), list(documents)
    parts = [[d for d in everything if d.split is not other] for other in (DocumentSplit.HELD_OUT, DocumentSplit.TRAIN)]
    if config.by == "vectors":
        vectors = build_vectors(everything, config)
        return Indexes(*(as_imperfect(vectors.among(part), config) if part else None for part in parts))
    train, held_out = parts
    first = build_index(train, config) if train else None
    return Indexes(first, first if train == held_out else build_index(held_out, config) if held_out else None)
