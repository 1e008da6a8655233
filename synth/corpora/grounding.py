"""Whether a passage states what a teacher says that it states, as far as that can be seen without another model, and what its names mean.

A fact comes with a quotation. The quotation must stand in the passage word for word and name both ends of the fact; the subject may be the
passage's own title instead, since texts rarely repeat it in every sentence. That the relation is the right one a quotation cannot
show: for that a teacher is asked, and what it says is recorded as what it is.

Which entity a mention means is decided by names. The first that holds:

    it is the document's title, with or without its qualifier in brackets -> the title's entity
    the whole name is known, case, accents and punctuation aside, though
    not figures and the signs of C++ and C#                               -> that entity
    it is an alias                                                        -> the entity that the alias is of
    its words are part of exactly one name that the document mentions     -> that entity ("Stone" -> "Amber Stone")
    ... of several                                                        -> ambiguous, and nothing is guessed
    ... of those alone that a statement sets beside it                    -> an entity of its own ("University of Oxford", "Oxford")
    otherwise                                                             -> an entity of its own, named as it was first written

A qualifier in brackets is part of an entity's name: "Blue River (film)" and "Blue River" are two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import BaseModel

from synth.questions.text_comparison import NameKey, mentions, name_key, plain, unqualified
from warehouse.records import Request, user


class StatedFact(BaseModel):
    """A fact as a teacher states it, with the words of the passage that say so."""

    subject: str
    relation: str
    object: str
    quote: str

    @property
    def claim(self) -> str:
        """The fact without its quotation, as it is shown to readers."""
        return f"{self.subject} — {self.relation} — {self.object}"


_WHETHER_STATED = "Passage:\n{text}\n\nClaim: {claim}\nDoes the passage state the claim? Answer yes or no."
_PLAY = "Sootlantern\nSootlantern is a play by Orla Vennick. Tamsin Rookhope played in it."
_READINGS = (
    (_WHETHER_STATED.format(text=_PLAY, claim="Sootlantern — author — Orla Vennick"), "Yes"),
    (_WHETHER_STATED.format(text=_PLAY, claim="Sootlantern — author — Tamsin Rookhope"), "No"),
)


class GroundingDefect(StrEnum):
    """Why a statement is not grounded in its passage."""

    EMPTY = "empty"
    SELF = "self"
    QUOTE_NOT_FOUND = "quote_not_found"
    SUBJECT_NOT_NAMED = "subject_not_named"
    OBJECT_NOT_NAMED = "object_not_named"


def grounding_defect(statement: StatedFact, title: str, text: str) -> GroundingDefect | None:
    """What the statement lacks in the passage `text` under `title`; None where it is grounded."""
    if not all(map(plain, (statement.subject, statement.relation, statement.object, statement.quote))):
        return GroundingDefect.EMPTY
    if name_key(statement.subject) == name_key(statement.object):
        return GroundingDefect.SELF
    if not mentions(text, statement.quote):
        return GroundingDefect.QUOTE_NOT_FOUND
    named = (name_key(title), name_key(unqualified(title)))
    if not mentions(statement.quote, statement.subject) and name_key(statement.subject) not in named:
        return GroundingDefect.SUBJECT_NOT_NAMED
    return None if mentions(statement.quote, statement.object) else GroundingDefect.OBJECT_NOT_NAMED


def whether_stated(statement: StatedFact, text: str) -> Request:
    """What a second reader is asked; the answer is yes or no."""
    return user(_WHETHER_STATED.format(text=text, claim=statement.claim), max_tokens=64, examples=_READINGS)


class AmbiguousMention(Exception):
    """A mention that may mean several entities."""


class Linker:
    """Links mentions to the entities that are known, and to names that the same document mentions in full."""

    def __init__(self, entities: Iterable[str], aliases: Mapping[str, str]) -> None:
        self._known: dict[NameKey, str] = {}
        for entity in entities:
            self._known.setdefault(name_key(entity), entity)
        self._aliases = {name_key(alias): entity for alias, entity in aliases.items()}
        self._new: dict[NameKey, str] = {}
        self._titles: dict[str, str] = {}
        self._mentioned: dict[str, dict[NameKey, str]] = {}
        self._beside: dict[str, set[tuple[NameKey, NameKey]]] = {}

    def note(self, document: str, title: str, names: Iterable[str]) -> None:
        """Take down what a document is called and which names it mentions; a shorter name may mean a longer one of them."""
        self._titles[document] = title
        mentioned = self._mentioned.setdefault(document, {})
        for name in (title, *names):
            mentioned.setdefault(name_key(name), name)

    def note_statement(self, document: str, title: str, subject: str, value: str) -> None:
        """Take down the two names of one statement of a document, which are names of two."""
        self.note(document, title, (subject, value))
        one, other = name_key(subject), name_key(value)
        self._beside.setdefault(document, set()).update(((one, other), (other, one)))

    def link(self, name: str, document: str) -> str:
        """The entity that `name` means in a document.

        Raises:
            AmbiguousMention: where it may mean several.
        """
        title = self._titles.get(document, "")
        if name_key(name) == name_key(unqualified(title)) and title:
            return self._entity(title)
        return self._stored(name) or self._longer(name, document) or self._entity(name)

    def _stored(self, name: str) -> str | None:
        return self._known.get(name_key(name)) or self._aliases.get(name_key(name))

    def _entity(self, name: str) -> str:
        return self._stored(name) or self._new.setdefault(name_key(name), name)

    def _longer(self, name: str, document: str) -> str | None:
        """The entity of the only longest name of the document that `name` is a part of; None where there is none, or it is none of them."""
        own, beside = name_key(name), self._beside.get(document, set())
        longer = {key: text for key, text in self._mentioned.get(document, {}).items() if _is_part(own, key)}
        others = {key: text for key, text in longer.items() if (own, key) not in beside}
        longest = [text for key, text in others.items() if not any(_is_part(key, other) for other in others)]
        entities = sorted({self._entity(text) for text in longest} | ({name} if longest and others != longer else set()))
        if len(entities) > 1:
            raise AmbiguousMention(f"{name!r} may mean {' or '.join(map(repr, entities))}")
        return entities[0] if entities else None


def _is_part(name: NameKey, other: NameKey) -> bool:
    """Whether the other name has all words, figures and signs of this one, and more words."""
    (words, signs), (more_words, more_signs) = name, other
    return words != more_words and f" {words} " in f" {more_words} " and set(signs) <= set(more_signs)
