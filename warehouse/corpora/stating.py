"""Finding the documents that state a fact, for facts that come without: a page about the one end which names the other.

A page is about an entity if its title is the entity's name. That a page names both ends is taken for a statement of the fact; a text that
names both and says something else about them cannot be told from one that states it without reading it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from warehouse.corpora.corpus import Corpus
from warehouse.corpora.text import folded, states
from warehouse.records import Document, Fact


def with_documents(corpus: Corpus) -> Corpus:
    """The corpus with, on every fact that names no document, the ids of those that state it; a fact that none states stays without."""
    by_title: dict[str, list[Document]] = defaultdict(list)
    for document in corpus.documents:
        by_title[folded(document.title)].append(document)
    facts = tuple(fact if fact.documents else replace(fact, documents=_stating(fact, by_title)) for fact in corpus.facts)
    return replace(corpus, facts=facts)


def _stating(fact: Fact, by_title: dict[str, list[Document]]) -> tuple[str, ...]:
    about_subject = [page for page in by_title.get(folded(fact.subject), ()) if states(page.text, fact.object)]
    about_object = [page for page in by_title.get(folded(fact.object), ()) if states(page.text, fact.subject)]
    return tuple(dict.fromkeys(page.id for page in (*about_subject, *about_object)))
