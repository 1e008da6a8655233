"""Films as they stand in the files of `kg_movies`, cleaned: debris taken out, double ids merged, articles given to the right film.

Every string that is left out is counted as a `Failure` with its reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warehouse.corpora.text import states, tidy
from warehouse.records import Failure

STAGE = "corpus"
_SHORTEST_SUMMARY = 20
"""Characters below which a summary is the caption of a picture and no summary."""
_SAME_FILM_YEARS = 2
"""Lists of films disagree by a year or two about one film; beyond that one article has been linked from two films."""
_MARKER = re.compile(r"\[[^\]]*\]|\]+|\[+")
_QUALIFIER = re.compile(r"\s*\([^)]*\)$")
_CREDIT = re.compile(r"^(dir\.|cast:|academy award)|\((screenplay|writer|director|teleplay|cast)\)$", re.IGNORECASE)
_STAGE_NAME = re.compile(r"[a-z]+(\.[a-z]+)+")
_NO_NAMES = frozenset({"The", "And", "Sr.", "Jr.", "Various", "Action"})
_SPELLINGS = {"Sport": "Sports"}


@dataclass(frozen=True, slots=True)
class Film:
    """One film; `href` is its Wikipedia article and `summary` that article's beginning, both empty where there is none."""

    title: str
    year: int
    cast: tuple[str, ...]
    genres: tuple[str, ...]
    href: str
    summary: str

    @property
    def id(self) -> str:
        """The article where there is one, else title and year."""
        return self.href or f"{self.title} ({self.year})"


def parse_films(rows: Iterable[Any]) -> tuple[list[Film], list[Failure]]:
    """Films out of the rows of the files, each id once, and everything that was left out."""
    failures: list[Failure] = []
    films = [film for row in rows if (film := _parse(row, failures)) is not None]
    return _merge(_relink(films, failures), failures), failures


def base_name(person: str) -> str:
    """A person's name as a text would give it: without the qualifier that tells namesakes apart."""
    return _QUALIFIER.sub("", person)


def _parse(row: Any, failures: list[Failure]) -> Film | None:
    try:
        title, year, href = tidy(_MARKER.sub("", row["title"])), int(row["year"]), row.get("href") or ""
        cast, genres, summary = _strings(row["cast"]), _strings(row["genres"]), tidy(row.get("extract") or "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        failures.append(Failure(STAGE, "malformed_film", f"{type(error).__name__}: {error}", row))
        return None
    if not title or "mw-parser-output" in title:
        failures.append(Failure(STAGE, "title_debris", "the title is empty or holds a style sheet", {"title": title, "year": year}))
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
            failures.append(Failure(STAGE, "cast_debris", "this is no name of a person or a group", item))
    return tuple(people)


def _is_name(text: str) -> bool:
    if len(text) < 2 or text in _NO_NAMES or text.count("(") != text.count(")") or _CREDIT.search(text):
        return False
    return text[0].isupper() or text[0].isdigit() or text[0] in "\"'" or _STAGE_NAME.fullmatch(text) is not None


def _relink(films: Sequence[Film], failures: list[Failure]) -> list[Film]:
    """The films, where several far apart in time share an article, with the article left to those whose year it states."""
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
            failures.append(Failure(STAGE, "double_id", "two rows with one id were merged", item))
    return list(merged.values())


def _union(first: Film, second: Film) -> Film:
    """Both rows as one film, of the year that its summary states."""
    year = second.year if states(first.summary, str(second.year)) and not states(first.summary, str(first.year)) else first.year
    cast, genres = dict.fromkeys(first.cast + second.cast), dict.fromkeys(first.genres + second.genres)
    return replace(first, year=year, cast=tuple(cast), genres=tuple(genres))
