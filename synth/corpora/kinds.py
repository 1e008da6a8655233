"""Kinds of things that a teacher's facts are about: the family of a kind, and the word with which a question asks for it."""

from __future__ import annotations

import re

from synth.questions.text_comparison import mentions

UNTYPED = "thing"
"""Kind of a thing whose kind is not known."""
OTHER = "other"
_FAMILIES = {
    family: frozenset(kinds.split())
    for family, kinds in {
        "person": "actor actress architect artist author character cinematographer comedian composer dancer director editor engineer "
        "filmmaker founder king man minister model musician novelist painter person philosopher photographer player playwright poet "
        "politician president producer queen rapper scientist screenwriter singer songwriter star woman writer",
        "time": "date day decade month time year",
        "quantity": "age amount budget count distance duration height length number price runtime size",
        "place": "capital city continent country county district island lake location mountain place province region river state town "
        "village",
        "organisation": "agency band club company corporation distributor institution label network organisation organization party "
        "school studio team university",
    }.items()
}


def family_of(kind: str) -> str:
    """Family of a kind by its last word, such as `person` of "film director"; `other` if it has none."""
    last = kind.split()[-1] if kind else ""
    return next((name for name, kinds in _FAMILIES.items() if {last, last.removesuffix("s")} & kinds), OTHER)


def said_kind(kind: str, text: str) -> str:
    """`kind` if it has a family, such as `person`, or the text says it; else empty."""
    return kind if family_of(kind) != OTHER or mentions(text, kind) else ""


def question_word(kind: str) -> str:
    """First words of a question that asks for something of this kind."""
    if kind == UNTYPED:
        return "What"
    return {"person": "Who", "time": "When"}.get(family_of(kind), f"Which {kind}")


def question_pattern(word: str) -> str:
    """Regular expression of a question that begins with `word`, as JSON text has it: small models write "What directed" for "Who"."""
    begin = re.sub(r"[^\w ]", ".", word)
    return rf'^{begin} [^"\\]+\?$'
