"""Passages of documents that are linked with each other, and random walks over them: what seed questions are asked about.

WebShaper draws its seeds by random walks over the hyperlinks of an encyclopaedia (arXiv 2507.15061). A folder of notes has few of these,
so two passages of different documents are linked by the first of these that holds:

    link   the one links the other's document, in Markdown (`[text](page.md)`, `[text][page]`) or as a wiki does (`[[Page|text]]`)
    title  the one names the other's title, which no other document bears
    name   both hold a name of two words or more that only few passages hold

Links hold in both directions, as projections do. A link and a title lead to the beginning of the document that they mean.
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

from synth.corpora.passages import NameFinder, capitalised_names, short_passages_of
from synth.questions.text_comparison import plain
from warehouse.records import Document

LinkKind = Literal["link", "title", "name"]

MOST_LINKS = 500
"""Links of one document that are followed."""
_INLINE = re.compile(r"!?\[([^\[\]\n]{1,200})\]\(<?([^()<>\s]{1,500})>?(?:\s+[\"'][^\"'\n]{0,200}[\"'])?\)")
_REFERENCE = re.compile(r"\[([^\[\]\n]{1,200})\]\[([^\[\]\n]{0,200})\]")
_DEFINITION = re.compile(r"^ {0,3}\[([^\[\]\n]{1,200})\]:[ \t]+<?([^<>\s]{1,500})>?.*$", re.MULTILINE)
_WIKI = re.compile(r"!?\[\[([^\[\]|#\n]{1,200})(?:#[^\[\]|\n]{0,200})?(?:\|([^\[\]\n]{1,200}))?\]\]")
_EMPHASIS = re.compile(r"(?<!\w)(_{1,3})(?=\S)([^_\n]{1,500})(?<=\S)\1(?!\w)")
_HEADING = re.compile(r"^#{1,6}[ \t]+", re.MULTILINE)
_TRIES = 20
"""Walks that are begun for each that is wanted, at most: small folders have fewer than that."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document as a reader sees it, without the marks of Markdown; `id` is that of its document and its number."""

    id: str
    document: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """The position of the passage that a link leads to, what links the two, and the words that do."""

    to: int
    kind: LinkKind
    words: str


@dataclass(frozen=True, slots=True)
class Walk:
    """Passages of different documents, each linked with the one before it; `links` has one fewer."""

    passages: tuple[Passage, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class LinkedPassages:
    """Passages, and for each of them its links."""

    passages: tuple[Passage, ...]
    links: tuple[tuple[Link, ...], ...]

    @classmethod
    def of(cls, documents: Sequence[Document], characters: int, sharing: int) -> LinkedPassages:
        """The passages of at most so many characters; a name links those that hold it where they are at most `sharing`."""
        pages = [_read(document, characters) for document in documents]
        passages = tuple(passage for page in pages for passage in page.passages)
        found: list[dict[int, Link]] = [{} for _ in passages]
        for one, other, kind, words in (*_linked(pages), *_named(pages, passages), *_shared(passages, sharing)):
            if passages[one].document != passages[other].document:
                found[one].setdefault(other, Link(other, kind, words))
                found[other].setdefault(one, Link(one, kind, words))
        return cls(passages, tuple(tuple(links[place] for place in sorted(links)) for links in found))

    def walks(self, count: int, longest: int, seed: int) -> list[Walk]:
        """Up to `count` walks over at most `longest` passages, no two over the same; a walk of one passage only where no more are wanted.

        Fewer come where there are fewer, or where drawing finds no more.
        """
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
    """Markdown as a reader sees it, and where each text of a link leads; the first of several links with one text counts."""
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
    """A document's passages, and the paths or titles that its links name, by their words."""

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
    """Each page that has a passage, and the position of its first one."""
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
    """Where the document begins that a link means: one by its path from the page, with or without its suffix, or by its title or name."""
    path = unquote(target.partition("#")[0])
    if not path or "://" in path:
        return None
    full = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    for place in (first.get(full), *(first.get(f"{full}{suffix}") for suffix in (".md", ".markdown", ".txt"))):
        if place is not None:
            return place
    return by_name.get(plain(path))


def _only_by_name(pages: Sequence[_Page]) -> dict[str, int]:
    """Where the documents begin whose title, or the name of whose file, no other bears."""
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
