from __future__ import annotations

import pickle

from rl.search import Miss, SearchIndex, passage, passages
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


def test_titles_that_two_documents_bear_come_in_the_order_of_their_ids() -> None:
    assert [found.id for found in INDEX.search("Twin", 2)] == ["c", "d"]


def test_equal_scores_come_in_the_order_of_their_ids() -> None:
    assert [found.id for found in INDEX.search("towns share", 1)] == ["c"]
    assert [found.id for found in INDEX.search("towns share", 5)] == ["c", "d"]


def test_words_find_the_text() -> None:
    assert [found.id for found in INDEX.search("city water", 1)] == ["b"]


def test_nothing_found_is_a_typed_miss() -> None:
    assert INDEX.find("", 3).miss is Miss.EMPTY_QUERY
    assert INDEX.find(" ?! ", 3).miss is Miss.EMPTY_QUERY
    assert INDEX.find("zebra", 3).miss is Miss.NO_HIT
    assert SearchIndex([]).find("lake", 3).miss is Miss.NO_HIT
    assert SearchIndex([document("a", "", "")]).find("lake", 3).miss is Miss.NO_HIT
    assert INDEX.search("zebra", 3) == []


def test_an_index_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(INDEX))
    assert copy.search("towns share", 2) == INDEX.search("towns share", 2)


def test_a_passage_bears_its_title_once() -> None:
    assert passage(document("a", "Green Lake", "Green Lake is a city.")) == "Green Lake is a city."
    assert passage(document("a", "Green Lake", "A city.")) == "Green Lake\nA city."
    assert passages([document("a", "A", "A b."), document("c", "C", "C d.")]) == "A b.\nC d."
