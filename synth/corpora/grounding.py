"""Facts as teachers state them, grounded in their passages: the quotation is located, and names both ends.

What is kept as the quotation are the passage's own words.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from pydantic import BaseModel

from synth.corpora.passages import sentences_of
from synth.questions.text_comparison import locate, mentions, name_key, plain, unqualified


class StatedFact(BaseModel):
    """A fact as a teacher states it, with its quotation."""

    subject: str
    relation: str
    object: str
    quote: str

    @property
    def claim(self) -> str:
        """The fact as text, without its quotation."""
        return f"{self.subject} — {self.relation} — {self.object}"


class TypedFact(StatedFact):
    """A stated fact with the types of its subject and object."""

    subject_type: str = ""
    object_type: str = ""


class GroundingDefect(StrEnum):
    """Why a statement is not grounded in its passage."""

    EMPTY = "empty"
    SELF = "self"
    QUOTE_NOT_FOUND = "quote_not_found"
    SUBJECT_NOT_NAMED = "subject_not_named"
    OBJECT_NOT_NAMED = "object_not_named"


S = TypeVar("S", bound=StatedFact)


def ground(statement: S, title: str, text: str) -> S | GroundingDefect:
    """The statement with the passage's own words as its quotation, or what is wrong with it given the passage `text` under `title`.

    The quotation is located by alignment. Where it names one end only, its sentence is quoted. The subject may be the title instead.
    """
    if not all(map(plain, (statement.subject, statement.relation, statement.object, statement.quote))):
        return GroundingDefect.EMPTY
    if name_key(statement.subject) == name_key(statement.object):
        return GroundingDefect.SELF
    quote = locate(text, statement.quote)
    if quote is None:
        return GroundingDefect.QUOTE_NOT_FOUND
    titled = name_key(statement.subject) in (name_key(title), name_key(unqualified(title)))
    sentence = next((each for each in sentences_of(text) if quote in each), quote)
    for evidence in (quote, sentence):
        if (titled or mentions(evidence, statement.subject)) and mentions(evidence, statement.object):
            return statement.model_copy(update={"quote": evidence})
    return GroundingDefect.OBJECT_NOT_NAMED if titled or mentions(sentence, statement.subject) else GroundingDefect.SUBJECT_NOT_NAMED


GROUNDING_REASONS = {
    GroundingDefect.EMPTY: "a part of it is empty",
    GroundingDefect.SELF: "subject and object are the same",
    GroundingDefect.QUOTE_NOT_FOUND: "the quote is not in the passage: copy it from there",
    GroundingDefect.SUBJECT_NOT_NAMED: "neither the quoted sentence nor the title names the subject as it is written",
    GroundingDefect.OBJECT_NOT_NAMED: "the quoted sentence does not name the object as it is written",
}
"""Sentences for the writer of a statement."""


def stated_case(statement: StatedFact, title: str, text: str) -> dict[str, str]:
    """What the reader `STATED` is shown of a statement."""
    return {"text": f"{title}\n{text}", "claim": statement.claim}
