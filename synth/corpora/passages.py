"""Texts in pieces of whole sentences, and the names that stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from synth.questions.text_comparison import unqualified

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\b[A-Z][\w’'-]+(?:\s+(?:(?:of the|of|de|la|van|von)\s+)?[A-Z][\w’'-]+)+")
SHORTEST_NAME = 4
"""Letters of a name of one word; shorter ones stand in texts for anything."""


def passages_of(text: str, characters: int) -> list[str]:
    """`text` in pieces of whole sentences of at most so many characters; a longer sentence is a piece of its own."""
    pieces = [""]
    for sentence in filter(None, _SENTENCE_END.split(text.strip())):
        joined = f"{pieces[-1]} {sentence}".strip()
        if pieces[-1] and len(joined) > characters:
            pieces.append(sentence)
        else:
            pieces[-1] = joined
    return [piece for piece in pieces if piece]


def short_passages_of(text: str, characters: int) -> list[str]:
    """The same, with a longer sentence, such as a table, cut into several of at most so many."""
    return [piece for sentences in passages_of(text, characters) for piece in _cut(sentences, characters)]


def _cut(text: str, characters: int) -> Iterator[str]:
    """A sentence that is longer than a passage may be, between its words where it has any."""
    place = 0
    while place < len(text):
        end = place + characters
        blank = text.rfind(" ", place + 1, end + 1) if end < len(text) else -1
        end = blank if blank > place else end
        if piece := text[place:end].strip():
            yield piece
        place = end


def capitalised_names(text: str) -> list[str]:
    """Runs of two capitalised words or more, which look like names whether anybody knows them or not."""
    return list(dict.fromkeys(" ".join(found.split()) for found in _NAME.findall(text)))


class NameFinder:
    """Finds which of the known names stand in a text, whole words in their own letters, the longest first where they overlap.

    A name with a qualifier in brackets is found without it too, unless two names would be found by the same words.
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
        """The names in `text`, each once, in the order in which they come."""
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
