from __future__ import annotations

import numpy as np

from rl.retrieval.search import Miss, SearchIndex
from warehouse.records import Document


def document(id: str, title: str, text: str = "") -> Document:
    return Document(id, title, text, "test")


INDEX = SearchIndex(
    [
        document("b", "Green Lake", "A city by the water."),
        document("a", "Lake Country", "Green Lake, Green Lake and again Green Lake."),
        document("d", "Twin", "Two towns share a name."),
        document("c", "twin", "Two towns share a name."),
    ]
)


def test_a_title_comes_before_every_ranking() -> None:
    assert [found.id for found in INDEX.search(" green  LAKE ", 2)] == ["b", "a"]


def test_equal_scores_come_in_the_order_of_their_ids() -> None:
    assert [found.id for found in INDEX.search("towns share", 1)] == ["c"]
    assert [found.id for found in INDEX.search("towns share", 5)] == ["c", "d"]


def test_nothing_found_is_a_typed_miss() -> None:
    assert INDEX.find("", 3).miss is Miss.EMPTY_QUERY
    assert INDEX.find(" ?! ", 3).miss is Miss.EMPTY_QUERY
    assert INDEX.find("zebra", 3).miss is Miss.NO_HIT
    assert SearchIndex([]).find("lake", 3).miss is Miss.NO_HIT
    assert SearchIndex([document("a", "", "")]).find("lake", 3).miss is Miss.NO_HIT
    assert INDEX.search("zebra", 3) == []


def test_the_first_hit_alone_is_the_first_of_the_whole_ranking() -> None:
    """Two thousand queries over texts whose words are as unevenly spread as in language; both ways to the first hit are taken."""
    rng = np.random.default_rng(3)
    words = [f"w{number}" for number in range(2_000)]
    drawn = (rng.zipf(1.3, size=(4_000, 20)) - 1) % len(words)
    texts = [" ".join(words[number] for number in row[: rng.integers(1, 21)]) for row in drawn]
    index = SearchIndex([document(f"{number:05}", f"title {number}", text) for number, text in enumerate(texts)])
    pruned = 0
    for _ in range(2_000):
        numbers = (
            rng.choice(len(words), rng.integers(1, 9)) if rng.random() < 0.5 else drawn[rng.integers(len(drawn)), : rng.integers(1, 9)]
        )
        query = " ".join(words[number] for number in numbers)
        first, whole = index.search(query, 1), index.search(query, 2)
        assert first == whole[:1]
        assert index._bm25 is not None and index._scores is not None
        known = index._bm25.get_tokens_ids(query.split())
        pruned += bool(known) and index._scores._pruned(known) is not None
    assert 100 < pruned < 1_900


def test_a_page_is_the_beginning_of_all_scores_in_order() -> None:
    """By score and then by id, and nothing that no word of the query stands in, however many are asked for."""
    rng = np.random.default_rng(4)
    words = [f"w{number}" for number in range(30)]
    texts = [" ".join(words[number] for number in rng.integers(0, len(words), 3)) for _ in range(200)]
    index = SearchIndex([document(f"{number:05}", f"title {number}", text) for number, text in enumerate(texts)])
    assert index._bm25 is not None and index._scores is not None
    for _ in range(200):
        query = [words[number] for number in rng.choice(len(words), rng.integers(1, 4), replace=False)]
        scores = index._scores.of(index._bm25.get_tokens_ids(query))
        in_order = [place for place in sorted(range(len(index)), key=lambda place: (-scores[place], place)) if scores[place] > 0]
        for k in (2, 5, 17, len(index)):
            assert index.search(" ".join(query), k) == [index.documents[place] for place in in_order[:k]]
