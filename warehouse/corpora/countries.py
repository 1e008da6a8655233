"""Countries as a corpus: borders, capitals, languages, currencies and regions as facts, the World Factbook as documents.

Each section of a Factbook page is a document; the first is titled with the country's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.corpora.corpus import Corpus, Wording, folded, plain, states
from warehouse.errors import RequestError
from warehouse.json_text import read_json
from warehouse.records import Document, Fact, Failure

SOURCE = "kg_countries"
_SHORTEST_ALIAS = 4
"""Minimum characters of an alternative spelling; shorter ones are codes, such as «IN», which occurs in any text."""

_SECTION_OF = {
    "borders": "Geography",
    "capital": "Government",
    "language": "People and Society",
    "currency": "Economy",
    "region": "Geography",
    "subregion": "Geography",
}
"""Section about each relation; a name elsewhere on the page does not state the fact."""


WORDINGS = {
    "borders": Wording(("Which country borders {s}?", "What is a neighbour of {s}?"), ("a neighbour of {s}",), "bordering {o}"),
    "capital": Wording(("What is the capital of {s}?",), ("the capital of {s}",), "with the capital {o}"),
    "language": Wording(("Which language is spoken in {s}?",), ("a language of {s}",), "where {o} is spoken"),
    "currency": Wording(
        ("What is the currency of {s}?", "What does one pay with in {s}?"), ("the currency of {s}",), "where one pays in {o}"
    ),
    "region": Wording(("In which region is {s}?",), ("the region of {s}",), "in {o}"),
    "subregion": Wording(("In which subregion is {s}?",), ("the subregion of {s}",), "in {o}"),
}


@dataclass(frozen=True, slots=True)
class _Country:
    row: Mapping[str, Any]
    sections: tuple[Document, ...]

    @property
    def name(self) -> str:
        return str(self.row["name"]["common"])

    @property
    def spellings(self) -> tuple[str, ...]:
        names = self.row["name"]
        others = [name for name in self.row.get("altSpellings", ()) if len(name) >= _SHORTEST_ALIAS]
        return (names["common"], names["official"], *others)


def read_countries(folder: Path, factbook: Path | None = None) -> Corpus:
    """Read `folder/countries.json`, with the documents in `factbook` (None: `corpus_factbook` next to `folder`).

    Raises RequestError if `countries.json` is missing or not JSON. A country without a document is reported as a failure.
    """
    rows = _load(folder / "countries.json")
    pages = _pages(factbook or folder.parent / "corpus_factbook")
    countries = [_Country(row, _sections(row, pages)) for row in rows]
    missing = [country.name for country in countries if not country.sections]
    names = _Names(country.name for country in countries)
    by_code = {country.row["cca3"]: country for country in countries}
    facts = tuple(dict.fromkeys(fact for country in countries for fact in _facts(country, by_code, names)))
    documents = tuple(section for country in countries for section in country.sections)
    failures = tuple(Failure("corpus", "no_document", "the Factbook has no page with this country's name", name) for name in missing)
    return Corpus(facts=facts, documents=documents, types=names.types, failures=failures, wordings=WORDINGS)


class _Names:
    """Assigns unique names: a city named like its country becomes «Singapore (city)»."""

    def __init__(self, countries: Iterator[str]) -> None:
        self.types = dict.fromkeys(countries, "country")

    def of(self, text: str, kind: str) -> str:
        name = text if self.types.setdefault(text, kind) == kind else f"{text} ({kind})"
        self.types[name] = kind
        return name


def _load(path: Path) -> Any:
    try:
        return read_json(path.read_bytes())
    except FileNotFoundError as error:
        raise RequestError(f"There is no file {path}: put the data of kg_countries there or choose another folder.") from error
    except ValueError as error:
        raise RequestError(f"{path} is not valid JSON ({error}): fetch it again.") from error


def _pages(folder: Path) -> dict[str, tuple[str, Any]]:
    pages: dict[str, tuple[str, Any]] = {}
    for path in sorted(folder.rglob("*.json")):
        page = _load(path)
        names = page.get("Government", {}).get("Country name", {})
        for form in ("conventional short form", "conventional long form"):
            name = folded(plain(names.get(form, {}).get("text", "")))
            if name not in ("", "none"):
                pages.setdefault(name, (f"{path.parent.name}/{path.stem}", page))
    return pages


def _sections(row: Mapping[str, Any], pages: Mapping[str, tuple[str, Any]]) -> tuple[Document, ...]:
    found = next((pages[key] for key in map(folded, _Country(row, ()).spellings) if key in pages), None)
    if found is None:
        return ()
    page_id, page = found
    name = row["name"]["common"]
    return tuple(
        Document(f"factbook:{page_id}#{section}", name if place == 0 else f"{name}: {section}", " ".join(_sentences(fields)), SOURCE)
        for place, (section, fields) in enumerate(page.items())
    )


def _sentences(fields: Any, name: str = "") -> Iterator[str]:
    """«Field: text.» for each text in a section, at any depth."""
    for key, value in fields.items():
        if key == "text" and isinstance(value, str):
            yield f"{name}: {plain(value)}." if name else f"{plain(value)}."
        elif isinstance(value, dict):
            yield from _sentences(value, f"{name}, {key.strip()}" if name else key.strip())


def _facts(country: _Country, by_code: Mapping[str, _Country], names: _Names) -> Iterator[Fact]:
    row = country.row
    for code in row["borders"]:
        if code in by_code:
            yield _fact(country, "borders", by_code[code].name, by_code[code].spellings)
    for capital in row["capital"]:
        yield _fact(country, "capital", names.of(capital, "city"), (capital,))
    for language in row["languages"].values():
        yield _fact(country, "language", names.of(language, "language"), (language,))
    for currency in row["currencies"].values():
        yield _fact(country, "currency", names.of(currency["name"], "currency"), (currency["name"], f"{currency['name']}s"))
    for level in ("region", "subregion"):
        if row[level]:
            yield _fact(country, level, names.of(row[level], "region"), (row[level],))


def _fact(country: _Country, relation: str, value: str, spellings: Sequence[str]) -> Fact:
    ending = f"#{_SECTION_OF[relation]}"
    sections = [section for section in country.sections if section.id.endswith(ending)]
    stating = [section.id for section in sections if any(states(folded(section.text), folded(spelling)) for spelling in spellings)]
    return Fact(country.name, relation, value, tuple(stating), SOURCE)
