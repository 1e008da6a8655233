"""A search as imperfect as the world's: displaced documents, namesakes, stubs, empty answers, pages; and none of it at random."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from rl.env_pool.worker import EnvironmentWorker
from rl.envs.config import EnvironmentKindConfig
from rl.renderers.base import Action
from rl.retrieval.config import ImperfectSearchConfig, SearchConfig
from rl.retrieval.indexes import ImperfectIndex, build_indexes, stub_of
from rl.retrieval.search import SearchIndex, shown, words_of
from synth.worlds.world import WorldConfig, generate_world
from warehouse.records import Document, DocumentSplit, Task

WORLDS = {variety: generate_world(WorldConfig(entities=400, prose_variety=variety), "train", 1) for variety in (1, 3)}
WORLD = WORLDS[1]
INDEX = SearchIndex(WORLD.documents)
TASK = Task("k", "search", "Where?", ())


@cache
def imperfect(world: int = 1, **settings: float) -> ImperfectIndex:
    return ImperfectIndex(SearchIndex(WORLDS[world].documents), ImperfectSearchConfig.model_validate(settings))


def places(index: ImperfectIndex) -> Counter[int]:
    """The rank of each document of the world in a search for its title, from 0; -1 where nothing is found."""
    found = {document.id: [each.id for each in index.find(document.title, 3).documents] for document in WORLD.documents}
    return Counter(ids.index(wanted) if ids else -1 for wanted, ids in found.items())


# What is found


def test_without_any_imperfection_it_finds_what_the_index_finds() -> None:
    for document in WORLD.documents[:50]:
        for query in (document.title, f"who made {document.title}"):
            assert imperfect().find(query, 4) == INDEX.find(query, 4)
            assert imperfect().scored(query, 4) == INDEX.scored(query, 4)


def test_a_displaced_document_is_second_or_third_and_the_others_keep_their_order() -> None:
    index = imperfect(displaced=0.5)
    counts = places(index)
    assert counts.keys() == {0, 1, 2} and 160 < counts[0] < 240 and min(counts[1], counts[2]) > 60
    for document in WORLD.documents[:50]:
        ids = [each.id for each in index.find(document.title, 5).documents]
        before = [each.id for each in INDEX.find(document.title, 5).documents]
        assert sorted(ids) == sorted(before) and [each for each in ids if each != document.id] == before[1:]


@pytest.mark.parametrize("variety", WORLDS)
def test_a_namesake_has_another_type_and_precedes_a_displaced_document(variety: int) -> None:
    world = WORLDS[variety]
    relations = {name: {fact.relation for fact in world.facts if fact.subject == name} for name in world.types}
    texts = {document.text.replace(document.title, ""): document.title for document in world.documents}
    index, lent = imperfect(variety, namesakes=1.0, displaced=1.0), []
    for document in world.documents:
        first = index.find(document.title).documents[0]
        if first.id == f"{document.id}#namesake":
            assert first.title == document.title and document.title in first.text
            lent.append((document.title, texts[first.text.replace(document.title, "")]))
    assert len(lent) > 0.9 * len(world.documents)
    assert all(relations[own].isdisjoint(relations[other]) for own, other in lent), "its facts answer no question about the other"


def test_a_share_of_the_documents_is_surrounded_by_fixed_foreign_text() -> None:
    index = imperfect(foreign=0.5)
    pages = {document.id: index.find(document.title).documents[0] for document in WORLD.documents}
    cluttered = [document for document in WORLD.documents if pages[document.id].text != document.text]
    assert 150 < len(cluttered) < 250
    for document in cluttered:
        page = pages[document.id]
        before, text, after = page.text.partition(document.text)
        assert text and before.strip() and after.strip() and (page.id, page.title) == (document.id, document.title)
        assert imperfect(foreign=0.5).find(document.title).documents[0] == page
    assert len({pages[document.id].text.partition(document.text)[0] for document in cluttered}) > 100, "each has its own"


def test_a_stub_omits_some_facts_and_adds_none() -> None:
    for variety, world in WORLDS.items():
        stated = {document.id: [f.object for f in world.facts if f.documents == (document.id,)] for document in world.documents}
        for document in world.documents:
            stub = stub_of(document)
            assert stub is not None and stub.text.startswith(document.title) and stub.text.endswith(".") and document.title == stub.title
            left = [value for value in stated[document.id] if value in stub.text]
            assert len(left) < len(stated[document.id]), variety
            assert set(words_of(stub.text)) <= set(words_of(document.text))
    assert stub_of(Document("d", "Lake", "Lake is wet.", "s")) is None
    cut = stub_of(Document("d", "Lake", "A fine one! In a wood, by a hill. It is wet.", "s"))
    assert cut is not None and cut.text == "A fine one!"


# Nothing is at random


def test_the_same_query_has_the_same_answer_and_other_words_have_another() -> None:
    index = imperfect(displaced=0.5, namesakes=0.3, stubs=0.3, empty=0.1)
    again = pickle.loads(pickle.dumps(index))
    hit = {"other words": 0, "never": 0}
    for document in WORLD.documents:
        title = document.title
        assert index.find(title, 3) == again.find(f"  {title.upper()}\n", 3)
        if document not in index.find(title).documents:
            reworded = (f"{title} {word}" for word in ("employer", "mayor", "maker", "star", "seat"))
            hit["other words" if any(document in index.find(query).documents for query in reworded) else "never"] += 1
    assert hit["other words"] > 180 and hit["never"] < 0.1 * hit["other words"]


def test_pages_are_parts_of_one_ranking() -> None:
    index, size = imperfect(displaced=0.5, namesakes=0.5, stubs=0.5), 2
    for document in WORLD.documents[:50]:
        whole = index.find(document.title, 6).documents
        pages = [index.find(f"{document.title} page {number}", size).documents for number in range(1, 6 // size + 1)]
        assert tuple(each for page in pages for each in page) == whole
        assert document in whole[:3]
        scores = {each.id.partition("#")[0]: score for each, score in INDEX.scored(document.title, 6)}
        assert [score for _, score in index.scored(document.title, 6)] == [scores[each.id.partition("#")[0]] for each in whole]


# The environment


async def test_training_and_suites_get_their_own_imperfect_search() -> None:
    documents = [replace(document, split=[*DocumentSplit][place % 3]) for place, document in enumerate(WORLD.documents)]
    indexes = build_indexes(documents, SearchConfig(imperfect=ImperfectSearchConfig(displaced=1.0)))
    worker = EnvironmentWorker("search", EnvironmentKindConfig(), indexes)
    for split, index in (("train", indexes.train), ("held_out", indexes.held_out)):
        assert index is not None
        for document in index.documents[:10]:
            await worker.reset(split, replace(TASK, split=split), seed=0)
            seen = [
                (await worker.step(split, Action("search", query))).observation for query in (document.title, f"{document.title} page 2")
            ]
            assert seen == [shown(index.find(document.title)), shown(index.find(f"{document.title} page 2"))]
            assert document.text != seen[0]
