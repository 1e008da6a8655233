"""Ground a teacher's facts in their passages: locate the quotation and check that it names subject and object.

The stored quotation is the passage's own text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain, dropwhile, islice

from pydantic import BaseModel

from synth.corpora.passages import sentences_of
from synth.questions.text_comparison import locate, mentions, name_key, plain, share_a_stem, unqualified, without

_WORDS = re.compile(r"[\w'’.-]*\w|,")


class TypedFact(BaseModel):
    """A fact stated by a teacher, with quotation and types of subject and object."""

    subject: str
    relation: str
    object: str
    quote: str
    subject_type: str = ""
    object_type: str = ""

    @property
    def claim(self) -> str:
        """The fact as text, without its quotation."""
        return f"{self.subject} — {self.relation} — {self.object}"

    @property
    def reverse(self) -> TypedFact:
        """The fact with subject and object swapped."""
        ends = {"subject": self.object, "object": self.subject, "subject_type": self.object_type, "object_type": self.subject_type}
        return self.model_copy(update=ends)


class GroundingDefect(StrEnum):
    """Why a statement is not grounded in its passage."""

    EMPTY = "empty"
    SELF = "self"
    QUOTE_NOT_FOUND = "quote_not_found"
    SUBJECT_NOT_NAMED = "subject_not_named"
    OBJECT_NOT_NAMED = "object_not_named"
    OTHER_RELATION = "other_relation"


def ground(statement: TypedFact, title: str, text: str) -> TypedFact | GroundingDefect:
    """Ground a statement in the passage `text` titled `title`: return it with the passage's own words as quotation, or the defect.

    The quotation is located by alignment. If it is not found or names only one end, a sentence that names both ends and the relation is
    used instead. The title may stand for one end, except for the agent of a passive relation. If the evidence contains a word of the
    relation, it must refer to the end that is not the title. A fact whose evidence states the reverse is swapped.
    """
    if not all(map(plain, (statement.subject, statement.relation, statement.object, statement.quote))):
        return GroundingDefect.EMPTY
    if name_key(statement.subject) == name_key(statement.object):
        return GroundingDefect.SELF
    titles = {name_key(title), name_key(unqualified(title))}
    ends = [end for end in (statement.subject, statement.object) if name_key(end) not in titles]
    if cut := next((end for end in ends if _is_cut(end, text)), None):
        return _not_named(cut, statement)
    quote, sentences = locate(text, statement.quote), sentences_of(text)
    quoted = [] if quote is None else [quote, *(each for each in sentences if quote in each)]
    said = without(f"{statement.relation} {statement.quote}", (statement.subject, statement.object))
    told = (each for each in sentences if all(_belongs(each, end, said) for end in ends))
    evidence = next((each for each in chain(quoted, told) if all(mentions(each, end) for end in ends)), None)
    if evidence is None:
        if quote is None:
            return GroundingDefect.QUOTE_NOT_FOUND
        return _not_named(next(end for end in ends if not mentions(quoted[-1], end)), statement)
    around = next((each for each in sentences if evidence in each), evidence)
    if len(ends) == 1 and _belongs(around, ends[0], statement.relation) is False:
        return GroundingDefect.OTHER_RELATION
    fact = statement.reverse if _is_reverse(statement, around) else statement
    if _is_passive(fact) and name_key(fact.object) in titles and not mentions(around, fact.object):
        return GroundingDefect.OBJECT_NOT_NAMED
    return fact.model_copy(update={"quote": evidence})


def _not_named(end: str, statement: TypedFact) -> GroundingDefect:
    return GroundingDefect.SUBJECT_NOT_NAMED if end == statement.subject else GroundingDefect.OBJECT_NOT_NAMED


def _is_cut(name: str, text: str) -> bool:
    """Whether a name ends with an initial that the passage continues, as "Cirio H." of "Cirio H. Santiago"."""
    return re.search(r"\b[A-Z]\.$", name) is not None and re.search(rf"{re.escape(name)} [A-Z]\w", text) is not None


def _is_passive(statement: TypedFact) -> bool:
    return plain(statement.relation).split()[-1] == "by"


def _is_reverse(statement: TypedFact, evidence: str) -> bool:
    """Whether the evidence states the relation in reverse: the subject follows the relation's words and the object does not.

    If the words of a passive relation are missing, "by" directly before the subject suffices.
    """
    words, relation = f" {plain(evidence)} ", plain(statement.relation)
    passive = _is_passive(statement)
    mark = f" {' '.join(relation.split()[-2:]) if passive else relation} "
    before, _, after = words.partition(mark if mark in words or not passive else " by ")
    if mentions(before, statement.subject) or not mentions(after, statement.subject) or mentions(after, statement.object):
        return False
    between = f" {after}".partition(f" {plain(statement.subject)} ")[0]
    return (mark in words or not between) if passive else " by " not in f"{between} "


_LINKING = frozenset(
    ("a", "an", "and", "as", "at", "by", "de", "del", "di", "for", "from", "in", "is", "la", "of", "on", "or", "the", "to", "van", "von")
) | {"was", "were", "with"}
"""Function words between a relation and a name."""
_VERBS = ("ed", "en", "ing")
_MOST_ROLES = 6


def _belongs(sentence: str, name: str, relation: str) -> bool | None:
    """Whether the words before `name`, skipping other names, are words of the relation; None if the sentence has none.

    In "directed by A and starring B, C", `starring` belongs to B and C, and `directed` to A; so A is not who it was "written by".
    """
    words, wanted = _WORDS.findall(sentence), [word for word in plain(relation).split() if word not in _LINKING]
    words[:1] = [word.lower() for word in words[:1]]
    forms = {word.lower() for word in words if share_a_stem([word.lower().removeprefix("co-")], wanted)}
    size = len(plain(name).split())
    places = [place for place in range(len(words)) if plain(" ".join(words[place : place + size])) == plain(name)]
    roles = [_roles(words[:place]) | set(words[place + size : place + size + 1]) for place in places]
    if not forms:
        passive = relation.casefold().rstrip().endswith(" by") and any(role.endswith(("ed", "en")) for each in roles for role in each)
        return False if passive else None
    return any(forms & each for each in roles) if places else None


def _roles(before: Sequence[str]) -> set[str]:
    """Role words before a name: `written` and `directed` for "written and directed by"."""
    found: list[str] = []
    words = dropwhile(lambda word: word in _LINKING or not word.islower(), reversed(before))
    for word in islice(words, _MOST_ROLES):
        if found and found[-1].endswith(_VERBS) and word not in ("and", ","):
            break
        found.append(word)
    return set(found)


GROUNDING_REASONS = {
    GroundingDefect.EMPTY: "a part of it is empty",
    GroundingDefect.SELF: "subject and object are the same",
    GroundingDefect.QUOTE_NOT_FOUND: "the quote is not in the passage: copy it from there",
    GroundingDefect.SUBJECT_NOT_NAMED: "neither the quoted sentence nor the title names the subject as it is written",
    GroundingDefect.OBJECT_NOT_NAMED: "the quoted sentence does not name the object as it is written",
    GroundingDefect.OTHER_RELATION: "the passage says something else of that name",
}
"""Messages returned to the writer of a statement."""


def stated_case(statement: TypedFact, title: str, text: str) -> dict[str, str]:
    return {"text": f"{title}\n{text}", "claim": statement.claim}
