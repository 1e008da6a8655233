"""Films as a corpus: cast, genres and year of 36,000 films as facts, their Wikipedia summaries as documents.

Rows of `kg_movies` are cleaned: debris is removed, duplicate ids are merged, and articles assigned to the right film; everything left out
is a `Failure`. Ambiguous titles become "title (year)", then the article's name. A fact lists the film's document only if its text states
the fact, as for about three in five casts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from warehouse.corpora.corpus import SENTENCE_END, Corpus, Wording, states, tidy
from warehouse.errors import RequestError
from warehouse.json_text import read_json
from warehouse.records import Document, Fact, Failure

SOURCE = "kg_movies"
CAST_MEMBER, GENRE, RELEASE_YEAR = "cast member", "genre", "release year"

WORDINGS = {
    CAST_MEMBER: Wording(("Who is in the cast of {s}?", "Who plays in {s}?"), ("a cast member of {s}", "an actor in {s}"), "with {o}"),
    GENRE: Wording(("What is the genre of {s}?", "What kind of film is {s}?"), ("the genre of {s}",), "of the genre {o}"),
    RELEASE_YEAR: Wording(
        ("In which year was {s} released?", "When did {s} come out?"), ("the release year of {s}", "the year of {s}"), "released in {o}"
    ),
}

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
"""Words for a genre in texts, if other than its name."""
STAGE = "corpus"
_SHORTEST_SUMMARY = 20
"""Minimum characters of a summary; shorter ones are picture captions."""
_SAME_FILM_YEARS = 2
"""Maximum difference of years for the same film across lists; beyond it, two films share an article by mistake."""
_MARKER = re.compile(r"\[[^\]]*\]|\]+|\[+")
_QUALIFIER = re.compile(r"\s*\([^)]*\)$")
_CREDIT = re.compile(r"^(dir\.|cast:|academy award)|\((screenplay|writer|director|teleplay|cast)\)$", re.IGNORECASE)
_STAGE_NAME = re.compile(r"[a-z]+(\.[a-z]+)+")
_NO_NAMES = frozenset({"The", "And", "Sr.", "Jr.", "Various", "Action"})
_SPELLINGS = {"Sport": "Sports"}


def read_films(folder: Path, longest: int | None = None) -> Corpus:
    """Read the corpus in `folder` (`movies-*.json`). Raises RequestError if the files are missing or not JSON lists.

    Args:
        longest: maximum characters of a document, cut at a sentence end; only the remaining text states facts.
    """
    films, failures = parse_films(_rows(folder))
    if longest is not None:
        films = [replace(film, summary=first_sentences(film.summary, longest)) for film in films]
    names = _names(films)
    documents = tuple(_document(film, name) for film, name in zip(films, names, strict=True) if film.summary)
    facts = tuple(fact for film, name in zip(films, names, strict=True) for fact in _facts(film, name))
    return Corpus(facts=facts, documents=documents, types=_types(films, names), failures=tuple(failures), wordings=WORDINGS)


def first_sentences(text: str, longest: int) -> str:
    """Whole sentences of `text` within `longest` characters, or the start of the first."""
    if len(text) <= longest:
        return text
    ends = [gap.start() for gap in SENTENCE_END.finditer(text, 0, longest)]
    return text[: ends[-1]] if ends else text[:longest].rsplit(" ", 1)[0]


def _rows(folder: Path) -> Iterator[Any]:
    paths = sorted(folder.glob("movies-*.json"))
    if not paths:
        raise RequestError(f"There are no files movies-*.json in {folder}: put the data of kg_movies there or choose another folder.")
    for path in paths:
        try:
            rows = read_json(path.read_bytes())
        except ValueError as error:
            raise RequestError(f"{path} is not valid JSON ({error}): fetch it again.") from error
        if not isinstance(rows, list):
            raise RequestError(f"{path} is not a list of films: fetch it again.")
        yield from rows


def _names(films: Sequence[Film]) -> list[str]:
    """Unique name per film, ignoring case like search by title."""
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
    """Name of the article, which is unique on Wikipedia."""
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


@dataclass(frozen=True, slots=True)
class Film:
    """A film; `href` is its Wikipedia article and `summary` the article's beginning, both possibly empty."""

    title: str
    year: int
    cast: tuple[str, ...]
    genres: tuple[str, ...]
    href: str
    summary: str

    @property
    def id(self) -> str:
        """Article name, else title and year."""
        return self.href or f"{self.title} ({self.year})"


def parse_films(rows: Iterable[Any]) -> tuple[list[Film], list[Failure]]:
    """Films from rows, merged by id, and failures for everything left out."""
    failures: list[Failure] = []
    films = [film for row in rows if (film := _parse(row, failures)) is not None]
    return _merge(_relink(films, failures), failures), failures


def base_name(person: str) -> str:
    """Name of a person without a disambiguating qualifier."""
    return _QUALIFIER.sub("", person)


def _parse(row: Any, failures: list[Failure]) -> Film | None:
    try:
        title, year, href = tidy(_MARKER.sub("", row["title"])), int(row["year"]), row.get("href") or ""
        cast, genres, summary = _strings(row["cast"]), _strings(row["genres"]), tidy(row.get("extract") or "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        failures.append(Failure(STAGE, "malformed_film", f"{type(error).__name__}: {error}", row))
        return None
    if not title or "mw-parser-output" in title:
        failures.append(Failure(STAGE, "title_debris", "the title is empty or contains a style sheet", {"title": title, "year": year}))
        return None
    if summary and len(summary) < _SHORTEST_SUMMARY:
        failures.append(Failure(STAGE, "summary_debris", "too short for a summary", {"title": title, "year": year, "summary": summary}))
        summary = ""
    people = _people(cast, title, year, failures)
    return Film(title, year, people, tuple(dict.fromkeys(_SPELLINGS.get(genre, genre) for genre in genres)), href, summary)


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"expected a list of strings, found {value!r}")
    return value


def _people(cast: Sequence[str], title: str, year: int, failures: list[Failure]) -> tuple[str, ...]:
    people: dict[str, None] = {}
    for place, text in enumerate(cast):
        name = tidy(_MARKER.sub("", text))
        if _is_name(name):
            people[name] = None
        else:
            item = {"title": title, "year": year, "place": place, "text": text}
            failures.append(Failure(STAGE, "cast_debris", "this is not the name of a person or a group", item))
    return tuple(people)


def _is_name(text: str) -> bool:
    if len(text) < 2 or text in _NO_NAMES or text.count("(") != text.count(")") or _CREDIT.search(text):
        return False
    return text[0].isupper() or text[0].isdigit() or text[0] in "\"'" or _STAGE_NAME.fullmatch(text) is not None


def _relink(films: Sequence[Film], failures: list[Failure]) -> list[Film]:
    """Remove shared articles from films far apart in time, except from those whose year the article states."""
    by_article: dict[str, list[Film]] = defaultdict(list)
    for film in films:
        by_article[film.href].append(film)
    return [_unlinked(film, failures) if _is_mislinked(film, by_article[film.href]) else film for film in films]


def _is_mislinked(film: Film, sharers: Sequence[Film]) -> bool:
    years = [sharer.year for sharer in sharers]
    if not film.href or max(years) - min(years) <= _SAME_FILM_YEARS:
        return False
    stated = [year for year in years if states(film.summary, str(year))]
    return film.year not in stated if stated else film is not sharers[0]


def _unlinked(film: Film, failures: list[Failure]) -> Film:
    item = {"title": film.title, "year": film.year, "href": film.href}
    failures.append(Failure(STAGE, "mislinked_article", "the article is about a film of another year", item))
    return replace(film, href="", summary="")


def _merge(films: Sequence[Film], failures: list[Failure]) -> list[Film]:
    merged: dict[str, Film] = {}
    for film in films:
        first = merged.get(film.id)
        merged[film.id] = film if first is None else _union(first, film)
        if first is not None:
            item = {"id": film.id, "titles": [first.title, film.title], "years": [first.year, film.year]}
            failures.append(Failure(STAGE, "double_id", "two rows with the same id were merged", item))
    return list(merged.values())


def _union(first: Film, second: Film) -> Film:
    """Merge two rows of one film, with the year that its summary states."""
    year = second.year if states(first.summary, str(second.year)) and not states(first.summary, str(first.year)) else first.year
    cast, genres = dict.fromkeys(first.cast + second.cast), dict.fromkeys(first.genres + second.genres)
    return replace(first, year=year, cast=tuple(cast), genres=tuple(genres))
