"""Films and countries: cleaning and naming on rows made for it, then the real data."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import DATA, needs
from warehouse import Fact, RequestError
from warehouse.corpora.corpus import Corpus
from warehouse.corpora.countries import read_countries
from warehouse.corpora.films import read_films


def _film(title: str, year: int, cast: list[str], genres: list[str], href: str | None = None, extract: str | None = None) -> dict[str, Any]:
    return {"title": title, "year": year, "cast": cast, "genres": genres, "href": href, "extract": extract}


def _read(folder: Path, films: list[Any]) -> Corpus:
    (folder / "movies-2000s.json").write_text(json.dumps(films))
    return read_films(folder)


def test_facts_name_the_documents_that_state_them(tmp_path: Path) -> None:
    text = "Night Boat is a 2001 American animated film that stars Ann Lee and Bob Ray (actor)."
    corpus = _read(tmp_path, [_film("Night Boat", 2001, ["Ann Lee", "An", "Bob Ray (writer)"], ["Animated", "War"], "Night_Boat", text)])
    stated = {(fact.relation, fact.object) for fact in corpus.facts if fact.documents}
    assert stated == {("cast member", "Ann Lee"), ("genre", "Animated"), ("release year", "2001")}
    assert {(fact.relation, fact.object) for fact in corpus.facts} - stated == {("cast member", "An"), ("genre", "War")}
    assert [(document.title, document.text) for document in corpus.documents] == [("Night Boat", text)]
    assert corpus.types == {"Night Boat": "film", "Ann Lee": "person", "An": "person", "Animated": "genre", "War": "genre", "2001": "year"}


def test_a_document_is_cut_at_the_end_of_a_sentence(tmp_path: Path) -> None:
    text = "Savage is a film. It was made by Cirio H. Santiago and by others, whom nobody knows by name."
    _read(tmp_path, [_film("Savage", 1973, [], [], "Savage", text)])
    cut = {longest: read_films(tmp_path, longest).documents[0].text for longest in (12, 45, 70, 100)}
    assert cut == {12: "Savage is a", 45: "Savage is a film.", 70: "Savage is a film.", 100: text}


def test_debris_is_left_out_and_counted(tmp_path: Path) -> None:
    cast = ["and", "voices of", "(", "(narrator)", ".", "Ann Lee]]", "will.i.am", '"Weird Al" Yankovic', "Dir.: X Y"]
    corpus = _read(tmp_path, [_film("A", 2001, cast, []), {"title": "no year"}, "no film", _film("B", 2001, [1], [])])  # type: ignore[list-item]
    assert {name for name, kind in corpus.types.items() if kind == "person"} == {"Ann Lee", "will.i.am", '"Weird Al" Yankovic'}
    assert Counter(failure.kind for failure in corpus.failures) == {"cast_debris": 6, "malformed_film": 3}


def test_double_ids_are_merged_and_wrong_links_cut(tmp_path: Path) -> None:
    films = [
        _film("Forbidden Trails", 1920, ["Ann Lee"], [], "Forbidden_Trails", "Forbidden Trails is a 1941 American film."),
        _film("Forbidden Trails", 1941, ["Bob Ray"], [], "Forbidden_Trails", "Forbidden Trails is a 1941 American film."),
        _film("Speed", 1928, ["Ann Lee"], ["Sport"], "Speed", "Speed is a 1929 American film."),
        _film("Speed", 1929, ["Ann Lee", "Bob Ray"], ["Sports"], "Speed", "Speed is a 1929 American film."),
    ]
    corpus = _read(tmp_path, films)
    assert Fact("Speed", "release year", "1929", ("film:Speed",), "kg_movies") in corpus.facts
    assert [fact.object for fact in corpus.facts if fact.subject == "Speed"] == ["Ann Lee", "Bob Ray", "Sports", "1929"]
    assert [document.title for document in corpus.documents] == ["Forbidden Trails (1941)", "Speed"]
    assert [failure.kind for failure in corpus.failures] == ["mislinked_article", "double_id"]


def test_a_folder_without_films_or_countries_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    for read, missing in ((read_films, r"movies-\*\.json"), (read_countries, "no file")):
        with pytest.raises(RequestError, match=missing):
            read(tmp_path)
    (tmp_path / "movies-1990s.json").write_text("[{")
    with pytest.raises(RequestError, match=r"movies-1990s\.json .*JSON"):
        read_films(tmp_path)


@pytest.mark.slow
@needs("kg_movies")
def test_the_real_films() -> None:
    corpus = read_films(DATA / "kg_movies")
    kinds, failures = Counter(corpus.types.values()), Counter(failure.kind for failure in corpus.failures)
    assert kinds["film"] > 36_000 and len(corpus.documents) > 34_000
    assert 240 < failures["cast_debris"] < 300 and failures["double_id"] + failures["mislinked_article"] > 150
    titles = [document.title.casefold() for document in corpus.documents]
    assert len(set(titles)) == len(titles) and len({document.id for document in corpus.documents}) == len(titles)
    cast = [bool(fact.documents) for fact in corpus.facts if fact.relation == "cast member"]
    assert 0.55 < sum(cast) / len(cast) < 0.65
    text = {document.id: document.text for document in corpus.documents}
    sample = [fact for fact in corpus.facts if fact.documents and fact.relation == "cast member"][::500]
    assert all(fact.object.split(" (")[0] in text[fact.documents[0]] for fact in sample)


COUNTRIES = DATA / "kg_countries"


@needs("kg_countries", "corpus_factbook")
@pytest.mark.slow
def test_the_real_countries() -> None:
    corpus = read_countries(COUNTRIES)
    assert Fact("Austria", "capital", "Vienna", ("factbook:europe/au#Government",), "kg_countries") in corpus.facts
    assert ("Singapore", "capital", "Singapore (city)") in {(fact.subject, fact.relation, fact.object) for fact in corpus.facts}
    borders = Counter(bool(fact.documents) for fact in corpus.facts if fact.relation == "borders")
    assert borders[True] > 600 and borders.total() == 649
    ids = {document.id for document in corpus.documents}
    assert all(document in ids for fact in corpus.facts for document in fact.documents)
    assert {failure.kind for failure in corpus.failures} == {"no_document"}
