"""Real films as a corpus: cast, genres and year of 36,000 films as facts, their Wikipedia summaries as documents.

An entity is named as a text would name it. Titles that mean several things are kept apart by "title (year)", then by the
name of the article. A fact lists the film's own document where that text really states it: about three casts in five do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from warehouse.corpora.corpus import Corpus
from warehouse.corpora.film_records import Film, base_name, parse_films
from warehouse.corpora.text import states, tidy
from warehouse.errors import RequestError
from warehouse.records import Document, Fact

SOURCE = "kg_movies"
CAST_MEMBER, GENRE, RELEASE_YEAR = "cast member", "genre", "release year"

_GENRE_WORDS = {
    "Animated": ("animated", "animation"),
    "Biography": ("biographical", "biography", "biopic"),
    "Historical": ("historical", "history"),
    "Martial Arts": ("martial arts", "martial-arts"),
    "Musical": ("musical",),
    "Romance": ("romance", "romantic"),
    "Satire": ("satire", "satirical"),
    "Science Fiction": ("science fiction", "science-fiction", "sci-fi"),
    "Sports": ("sports", "sport"),
}
"""How texts say a genre, where that is more than its name."""


def read_films(folder: Path, longest: int | None = None) -> Corpus:
    """The corpus in `folder` (`movies-*.json`); raises `RequestError` where there are no such files or one is no JSON list.

    Args:
        longest: characters of a document at most, cut after a sentence; a fact then counts as stated only in what is left.
    """
    films, failures = parse_films(_rows(folder))
    if longest is not None:
        films = [replace(film, summary=first_sentences(film.summary, longest)) for film in films]
    names = _names(films)
    documents = tuple(_document(film, name) for film, name in zip(films, names, strict=True) if film.summary)
    facts = tuple(fact for film, name in zip(films, names, strict=True) for fact in _facts(film, name))
    return Corpus(facts=facts, documents=documents, types=_types(films, names), failures=tuple(failures))


def first_sentences(text: str, longest: int) -> str:
    """As many whole sentences of `text` as fit into `longest` characters; the beginning of the first where not even that fits."""
    if len(text) <= longest:
        return text
    end = max(text.rfind(mark, 0, longest) for mark in (". ", "! ", "? "))
    return text[: end + 1] if end > 0 else text[:longest].rsplit(" ", 1)[0]


def _rows(folder: Path) -> Iterator[Any]:
    paths = sorted(folder.glob("movies-*.json"))
    if not paths:
        raise RequestError(f"There are no files movies-*.json in {folder}: put the data of kg_movies there or name another folder.")
    for path in paths:
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RequestError(f"{path} is not JSON ({error}): fetch it again.") from error
        if not isinstance(rows, list):
            raise RequestError(f"{path} holds no list of films: fetch it again.")
        yield from rows


def _names(films: Sequence[Film]) -> list[str]:
    """A name for each film that nothing else bears, whatever its case: search by title ignores case."""
    others = {name.casefold() for film in films for name in (*film.cast, *film.genres, str(film.year))}
    titles = Counter(film.title.casefold() for film in films)
    dated = Counter(_dated(film).casefold() for film in films)
    taken: set[str] = set()
    names = []
    for film in films:
        key = film.title.casefold()
        if titles[key] == 1 and key not in others:
            name = film.title
        else:
            name = _dated(film) if dated[_dated(film).casefold()] == 1 or not film.href else _article(film)
        names.append(_free(name, taken))
        taken.add(names[-1].casefold())
    return names


def _dated(film: Film) -> str:
    return f"{film.title} ({film.year})"


def _article(film: Film) -> str:
    """The name of the article, which Wikipedia keeps unique."""
    return tidy(unquote(film.href).replace("_", " "))


def _free(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate.casefold() in taken:
        candidate, number = f"{name} ({number})", number + 1
    return candidate


def _document(film: Film, name: str) -> Document:
    return Document(id=_document_id(film), title=name, text=film.summary, source=SOURCE)


def _document_id(film: Film) -> str:
    return f"film:{film.id}"


def _facts(film: Film, name: str) -> Iterator[Fact]:
    lower = film.summary.lower()
    for person in film.cast:
        yield _fact(film, name, CAST_MEMBER, person, states(film.summary, base_name(person)))
    for genre in film.genres:
        words = _GENRE_WORDS.get(genre, (genre.lower(),))
        yield _fact(film, name, GENRE, genre, any(states(lower, word) for word in words))
    yield _fact(film, name, RELEASE_YEAR, str(film.year), states(film.summary, str(film.year)))


def _fact(film: Film, name: str, relation: str, value: str, stated: bool) -> Fact:
    return Fact(name, relation, value, (_document_id(film),) if stated else (), SOURCE)


def _types(films: Sequence[Film], names: Sequence[str]) -> dict[str, str]:
    types = {person: "person" for film in films for person in film.cast}
    types |= {genre: "genre" for film in films for genre in film.genres}
    types |= {str(film.year): "year" for film in films}
    return types | dict.fromkeys(names, "film")
