"""Passages of documents, names in them, and random walks over linked passages as input for seed questions.

WebShaper draws its seeds by random walks over the hyperlinks of an encyclopaedia (arXiv 2507.15061). Folders of notes have few links, so
passages of two documents are linked by the first rule that applies:

    link   one links to the other's document, in Markdown (`[text](page.md)`, `[text][page]`) or wiki syntax (`[[Page|text]]`)
    title  one contains the other's title, which no other document has
    name   both contain a name of two or more words that few passages contain

Links are bidirectional. A link or title leads to the first passage of the document.
"""

from __future__ import annotations

import posixpath
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from synth.questions.text_comparison import mentions, plain, unqualified
from warehouse.corpora.corpus import SENTENCE_END
from warehouse.records import Document

_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\b[A-Z][\w’'-]+(?:\s+(?:(?:of the|of|de|la|van|von)\s+)?[A-Z][\w’'-]+)+")
_PART_END = re.compile(
    r"\b(?:by|in|on|at|of|from|to|is|was|are|were|stars|[a-z]{2,}ed|[a-z]{3,}ing)\b|[:;]|,\s+(?!(?:and|or|with|along|as|also)\b)[a-z]"
)
SHORTEST_NAME = 4
"""Minimum length of a one-word name; shorter words are too ambiguous."""


def sentences_of(text: str) -> list[str]:
    return list(filter(None, SENTENCE_END.split(text.strip())))


def passages_of(text: str, characters: int) -> list[str]:
    """Split `text` into passages of whole sentences, at most `characters` each; a longer sentence forms its own passage."""
    pieces = [""]
    for sentence in sentences_of(text):
        joined = f"{pieces[-1]} {sentence}".strip()
        if pieces[-1] and len(joined) > characters:
            pieces.append(sentence)
        else:
            pieces[-1] = joined
    return [piece for piece in pieces if piece]


def short_passages_of(text: str, characters: int) -> list[str]:
    """Like `passages_of`, but split longer sentences (such as tables) between words."""
    return [piece for sentences in passages_of(text, characters) for piece in _cut(sentences, characters)]


def _cut(text: str, characters: int) -> Iterator[str]:
    place = 0
    while place < len(text):
        end = place + characters
        blank = text.rfind(" ", place + 1, end + 1) if end < len(text) else -1
        end = blank if blank > place else end
        if piece := text[place:end].strip():
            yield piece
        place = end


def capitalised_names(text: str) -> list[str]:
    """Distinct runs of two or more capitalised words."""
    return list(dict.fromkeys(" ".join(found.split()) for found in _NAME.findall(text)))


def listed_with(name: str, text: str) -> list[str]:
    """Other names in the clauses of `text` that list `name`; empty if `name` starts with a digit.

    A clause ends at a verb, a preposition, or a comma before a new statement, as in "mayor A, capital B".
    """
    parts = [part for part in _PART_END.split(text) if mentions(part, name)] if not name[:1].isdigit() else []
    return [other for part in parts for other in capitalised_names(part) if not mentions(other, name) and not mentions(name, other)]


class NameFinder:
    """Finds known names in text: whole words, case-sensitive, longest match first.

    A name with a qualifier in brackets also matches without it, unless that is ambiguous.
    """

    def __init__(self, names: Iterable[str]) -> None:
        by_words: dict[tuple[str, ...], set[str]] = {}
        for name in names:
            for form in {name, unqualified(name)}:
                words = tuple(_WORD.findall(form))
                if len(words) > 1 or (words and len(words[0]) >= SHORTEST_NAME):
                    by_words.setdefault(words, set()).add(name)
        self._names: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        for words, meant in sorted(by_words.items(), key=lambda item: (-len(item[0]), item[0])):
            if len(meant) == 1:
                self._names.setdefault(words[0], []).append((words, next(iter(meant))))

    def find(self, text: str) -> list[str]:
        """Distinct names in `text`, in order of occurrence."""
        words = _WORD.findall(text)
        found: dict[str, None] = {}
        place = 0
        while place < len(words):
            known = self._names.get(words[place], ())
            match = next(((form, name) for form, name in known if tuple(words[place : place + len(form)]) == form), None)
            if match is not None:
                found[match[1]] = None
            place += 1 if match is None else len(match[0])
        return list(found)


LinkKind = Literal["link", "title", "name"]

MOST_LINKS = 500
_INLINE = re.compile(r"!?\[([^\[\]\n]{1,200})\]\(<?([^()<>\s]{1,500})>?(?:\s+[\"'][^\"'\n]{0,200}[\"'])?\)")
_REFERENCE = re.compile(r"\[([^\[\]\n]{1,200})\]\[([^\[\]\n]{0,200})\]")
_DEFINITION = re.compile(r"^ {0,3}\[([^\[\]\n]{1,200})\]:[ \t]+<?([^<>\s]{1,500})>?.*$", re.MULTILINE)
_WIKI = re.compile(r"!?\[\[([^\[\]|#\n]{1,200})(?:#[^\[\]|\n]{0,200})?(?:\|([^\[\]\n]{1,200}))?\]\]")
_EMPHASIS = re.compile(r"(?<!\w)(_{1,3})(?=\S)([^_\n]{1,500})(?<=\S)\1(?!\w)")
_HEADING = re.compile(r"^#{1,6}[ \t]+", re.MULTILINE)
_TRIES = 20
"""Walk attempts per requested walk."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a document without Markdown. `id` is the document id, "#" and a number."""

    id: str
    document: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """Link to the passage at index `to`, with its kind and anchor text."""

    to: int
    kind: LinkKind
    words: str


@dataclass(frozen=True, slots=True)
class Walk:
    """Passages of different documents; `links[i]` leads from passage i to passage i + 1."""

    passages: tuple[Passage, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class LinkedPassages:
    passages: tuple[Passage, ...]
    links: tuple[tuple[Link, ...], ...]

    @classmethod
    def of(cls, documents: Sequence[Document], characters: int, sharing: int) -> LinkedPassages:
        """Split documents into passages of at most `characters`; a name links passages if at most `sharing` contain it."""
        pages = [_read(document, characters) for document in documents]
        passages = tuple(passage for page in pages for passage in page.passages)
        found: list[dict[int, Link]] = [{} for _ in passages]
        for one, other, kind, words in (*_linked(pages), *_named(pages, passages), *_shared(passages, sharing)):
            if passages[one].document != passages[other].document:
                found[one].setdefault(other, Link(other, kind, words))
                found[other].setdefault(one, Link(one, kind, words))
        return cls(passages, tuple(tuple(links[place] for place in sorted(links)) for links in found))

    def walks(self, count: int, longest: int, seed: int) -> list[Walk]:
        """Draw up to `count` walks over distinct sets of at most `longest` passages; single passages only if `longest` is 1."""
        rng = random.Random(seed)
        starts = [place for place, links in enumerate(self.links) if links or longest == 1]
        found: dict[frozenset[str], Walk] = {}
        for _ in range(_TRIES * count if starts else 0):
            walk = self._walk(rng.choice(starts), rng.randint(min(2, longest), longest), rng)
            found.setdefault(frozenset(passage.id for passage in walk.passages), walk)
            if len(found) == count:
                break
        return list(found.values())

    def _walk(self, start: int, steps: int, rng: random.Random) -> Walk:
        places, links = [start], list[Link]()
        while len(places) < steps:
            met = {self.passages[place].document for place in places}
            onward = [link for link in self.links[places[-1]] if self.passages[link.to].document not in met]
            if not onward:
                break
            links.append(rng.choice(onward))
            places.append(links[-1].to)
        return Walk(tuple(self.passages[place] for place in places), tuple(links))


def readable(text: str) -> tuple[str, dict[str, str]]:
    """Convert Markdown to plain text; also map each link text to its target (the first if a text repeats)."""
    targets: dict[str, str] = {}
    defined = {plain(name): target for name, target in _DEFINITION.findall(text)}

    def inline(found: re.Match[str]) -> str:
        return _note(targets, found[1], found[2])

    def reference(found: re.Match[str]) -> str:
        target = defined.get(plain(found[2] or found[1]))
        return found[0] if target is None else _note(targets, found[1], target)

    def wiki(found: re.Match[str]) -> str:
        return _note(targets, found[2] or found[1], found[1])

    text = _DEFINITION.sub("", text)
    for pattern, replacement in ((_WIKI, wiki), (_INLINE, inline), (_REFERENCE, reference)):
        text = pattern.sub(replacement, text)
    return _HEADING.sub("", _EMPHASIS.sub(r"\2", text)), targets


def _note(targets: dict[str, str], words: str, target: str) -> str:
    if len(targets) < MOST_LINKS:
        targets.setdefault(words.strip(), target.strip())
    return words


@dataclass(frozen=True, slots=True)
class _Page:
    document: Document
    passages: tuple[Passage, ...]
    targets: Mapping[str, str]


def _read(document: Document, characters: int) -> _Page:
    text, targets = readable(document.text)
    pieces = enumerate(short_passages_of(text, characters), 1)
    own = (Passage(f"{document.id}#{number}", document.id, document.title, piece) for number, piece in pieces)
    return _Page(document, tuple(own), targets)


_Found = tuple[int, int, LinkKind, str]


def _starts(pages: Iterable[_Page]) -> Iterator[tuple[_Page, int]]:
    place = 0
    for page in pages:
        if page.passages:
            yield page, place
        place += len(page.passages)


def _linked(pages: Sequence[_Page]) -> Iterator[_Found]:
    first = {page.document.id: place for page, place in _starts(pages)}
    by_name = _only_by_name(pages)
    for page, place in _starts(pages):
        for words, target in page.targets.items():
            to = _place_of(target, page.document.id, first, by_name)
            holding = () if to is None else (n for n, passage in enumerate(page.passages) if words in passage.text)
            yield from ((place + number, to, "link", words) for number in holding if to is not None)


def _place_of(target: str, page: str, first: Mapping[str, int], by_name: Mapping[str, int]) -> int | None:
    """Index of the linked document's first passage, found by relative path (with or without suffix), title or file name."""
    path = unquote(target.partition("#")[0])
    if not path or "://" in path:
        return None
    full = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    for place in (first.get(full), *(first.get(f"{full}{suffix}") for suffix in (".md", ".markdown", ".txt"))):
        if place is not None:
            return place
    return by_name.get(plain(path))


def _only_by_name(pages: Sequence[_Page]) -> dict[str, int]:
    found: dict[str, set[int]] = defaultdict(set)
    for page, place in _starts(pages):
        stem = posixpath.splitext(posixpath.basename(page.document.id))[0]
        for name in (page.document.title, stem):
            found[plain(name)].add(place)
    return {name: next(iter(places)) for name, places in found.items() if name and len(places) == 1}


def _named(pages: Sequence[_Page], passages: Sequence[Passage]) -> Iterator[_Found]:
    titled: dict[str, list[int]] = defaultdict(list)
    for page, place in _starts(pages):
        titled[page.document.title].append(place)
    only = {title: places[0] for title, places in titled.items() if len(places) == 1}
    finder = NameFinder(only)
    for number, passage in enumerate(passages):
        yield from ((number, only[title], "title", title) for title in finder.find(passage.text))


def _shared(passages: Sequence[Passage], sharing: int) -> Iterator[_Found]:
    holding: dict[str, list[int]] = defaultdict(list)
    words: dict[str, str] = {}
    for number, passage in enumerate(passages):
        for name in capitalised_names(passage.text):
            words.setdefault(plain(name), name)
            holding[plain(name)].append(number)
    for name, places in holding.items():
        alone = sorted(set(places))
        if 2 <= len(alone) <= sharing:
            yield from ((one, other, "name", words[name]) for n, one in enumerate(alone) for other in alone[n + 1 :])
