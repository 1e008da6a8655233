"""A corpus: facts of a knowledge graph, documents that state them, and failures; and helpers to compare texts."""

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
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b[JSMD]r\.)(?<!\bSt\.)(?<!\bMrs\.)\s+")
"""Space after a sentence. Initials and titles do not end one: "J. Smith", "Joe Kirkwood Jr. and"."""


@dataclass(frozen=True, slots=True)
class Wording:
    """English wording of a relation; `{s}` is its subject, `{o}` its object. Empty fields are derived from the relation's name.

    `questions` ask for the object («In which year was {s} released?»), `phrases` name it within a longer question («the release year of
    {s}»), `condition` describes a subject by its object («released in {o}»), `word` names the relation in compact questions («year of Night
    Boat?»). The plainest form comes first.
    """

    questions: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    condition: str = ""
    word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Facts and documents of one world.

    Each entity has one name, as a reader would write it. `types` gives the kinds of entities (`film`, `person`, ...) if known. `failures`
    are the rows and strings left out.
    """

    facts: tuple[Fact, ...] = ()
    documents: tuple[Document, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    wordings: Mapping[str, Wording] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hexadecimal digest of the facts with their document ids, and of the documents' ids, titles and texts."""
        state = hashlib.sha256()
        for fact in self.facts:
            state.update(repr((fact.subject, fact.relation, fact.object, fact.documents)).encode("utf-8", "surrogatepass"))
        for document in self.documents:
            state.update(repr((document.id, document.title, document.text)).encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def joined(self, other: Corpus) -> Corpus:
        """Union of both corpora; `self` takes precedence."""
        return Corpus(
            facts=tuple(dict.fromkeys(self.facts + other.facts)),
            documents=tuple(dict.fromkeys(self.documents + other.documents)),
            types={**other.types, **self.types},
            failures=self.failures + other.failures,
            wordings={**other.wordings, **self.wordings},
        )


def tidy(text: str) -> str:
    """`text` in Unicode's composed form, with single spaces."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def plain(markup: str) -> str:
    """Text of an HTML fragment."""
    return tidy(_TAG.sub(" ", html.unescape(markup)))


def folded(text: str) -> str:
    """`text` without case and accents, for comparing names."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def states(text: str, phrase: str) -> bool:
    """Whether `text` contains `phrase` as whole words, sensitive to case and accents."""
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        end = start + len(phrase)
        if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum():
            return True
        start = text.find(phrase, start + 1)
    return False


def with_documents(corpus: Corpus) -> Corpus:
    """Add document ids to facts without any, if a document states them.

    A page titled after one end of a fact that names the other end is assumed to state it.
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
