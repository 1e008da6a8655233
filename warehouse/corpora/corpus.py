"""A corpus: the facts of a knowledge graph, the documents that state them, and what had to be left out of it.

Beside it stand the questions about text that all readers of corpora ask, and the search for the documents that state a fact.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from warehouse.records import Document, Fact, Failure

_TAG = re.compile(r"<[^>]+>")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Wording:
    """How a relation is spoken of in plain English: `{s}` stands for its subject, `{o}` for its object.

    `questions` ask for the object («In which year was {s} released?»), `phrases` name it within a longer question («the release year of
    {s}»), `condition` tells a subject by its object («released in {o}»). `word` stands for the relation in the compact form of a question
    («year of Night Boat?»). The first of several is the plainest. What is empty is made of the relation's name.
    """

    questions: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    condition: str = ""
    word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Facts and documents of one world.

    Entities are named by the text a reader would use for them, and one name means one entity. `types` says what kind of thing
    an entity is (`film`, `person`, ...), where that is known. `failures` are the rows and strings that were left out. `wordings` say how
    relations are spoken of.
    """

    facts: tuple[Fact, ...] = ()
    documents: tuple[Document, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    wordings: Mapping[str, Wording] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hexadecimal digest of what it says: its facts with their documents, and the documents' texts."""
        state = hashlib.sha256()
        for fact in self.facts:
            state.update(repr((fact.subject, fact.relation, fact.object, fact.documents)).encode("utf-8", "surrogatepass"))
        for document in self.documents:
            state.update(repr((document.id, document.title, document.text)).encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def joined(self, other: Corpus) -> Corpus:
        """Both corpora as one; a type that only one of them knows is kept."""
        return Corpus(
            facts=tuple(dict.fromkeys(self.facts + other.facts)),
            documents=tuple(dict.fromkeys(self.documents + other.documents)),
            types={**other.types, **self.types},
            failures=self.failures + other.failures,
            wordings={**other.wordings, **self.wordings},
        )


def tidy(text: str) -> str:
    """`text` in Unicode's composed form, with single ordinary spaces."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def plain(markup: str) -> str:
    """The text of a piece of HTML."""
    return tidy(_TAG.sub(" ", html.unescape(markup)))


def folded(text: str) -> str:
    """`text` without case and accents: for matching names, never for showing them."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def states(text: str, phrase: str) -> bool:
    """Whether `phrase` stands in `text` as whole words; case and accents count."""
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        end = start + len(phrase)
        if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum():
            return True
        start = text.find(phrase, start + 1)
    return False


def with_documents(corpus: Corpus) -> Corpus:
    """The corpus with, on every fact that names no document, the ids of those that state it; a fact that none states stays without.

    A page about the one end of a fact (its title is that entity's name) which names the other is taken to state it; a text that names both
    and says something else about them cannot be told from one that states the fact without reading it.
    """
    by_title: dict[str, list[Document]] = defaultdict(list)
    for document in corpus.documents:
        by_title[folded(document.title)].append(document)
    facts = tuple(fact if fact.documents else replace(fact, documents=_stating(fact, by_title)) for fact in corpus.facts)
    return replace(corpus, facts=facts)


def _stating(fact: Fact, by_title: dict[str, list[Document]]) -> tuple[str, ...]:
    about_subject = [page for page in by_title.get(folded(fact.subject), ()) if states(page.text, fact.object)]
    about_object = [page for page in by_title.get(folded(fact.object), ()) if states(page.text, fact.subject)]
    return tuple(dict.fromkeys(page.id for page in (*about_subject, *about_object)))
