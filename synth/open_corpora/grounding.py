"""Whether a passage states what a teacher says that it states, as far as that can be seen without another model.

A fact comes with a quotation. The quotation must stand in the passage word for word and name both ends of the fact; the subject may be the
passage's own title instead, since texts rarely repeat it in every sentence. That the relation is the right one a quotation cannot
show: for that a teacher is asked, and what it says is recorded as what it is.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel

from synth.questions.mentions import mentions, plain, unqualified


class Statement(BaseModel):
    """A fact as a teacher states it, with the words of the passage that say so."""

    subject: str
    relation: str
    object: str
    quote: str


class Lack(StrEnum):
    """Why a statement is not grounded in its passage."""

    EMPTY = "empty"
    SELF = "self"
    QUOTE_NOT_FOUND = "quote_not_found"
    SUBJECT_NOT_NAMED = "subject_not_named"
    OBJECT_NOT_NAMED = "object_not_named"


def lack_of(statement: Statement, title: str, text: str) -> Lack | None:
    """What the statement lacks in the passage `text` under `title`; None where it is grounded."""
    if not all(map(plain, (statement.subject, statement.relation, statement.object, statement.quote))):
        return Lack.EMPTY
    if plain(statement.subject) == plain(statement.object):
        return Lack.SELF
    if not mentions(text, statement.quote):
        return Lack.QUOTE_NOT_FOUND
    if not mentions(statement.quote, statement.subject) and plain(statement.subject) not in (plain(title), plain(unqualified(title))):
        return Lack.SUBJECT_NOT_NAMED
    return None if mentions(statement.quote, statement.object) else Lack.OBJECT_NOT_NAMED


def question_whether_stated(statement: Statement, text: str) -> str:
    """What a second reader is asked; the answer is yes or no."""
    claim = f"{statement.subject} — {statement.relation} — {statement.object}"
    return f"Passage:\n{text}\n\nClaim: {claim}\nDoes the passage state the claim? Answer yes or no."
