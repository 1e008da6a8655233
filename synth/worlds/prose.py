"""How a document states its facts: from bare keywords (variety 1) to free sentences (variety 3).

Every text begins with the name of its entity. Variety 1 and 2 state a relation by the keyword that questions use; variety 3
mostly does not, so that reading it takes more than matching words.
"""

from __future__ import annotations

from collections.abc import Sequence

from synth.worlds.schema import Relation

_KEYWORD_SENTENCES = ("The {r} of {s} is {o}.", "{s} has {o} as {r}.", "{o} is the {r} of {s}.", "As {r}, {s} has {o}.")


def sentence_choices(relation: Relation, variety: int) -> int:
    """How many ways there are to state a fact of `relation` in prose of `variety`."""
    return {1: 1, 2: len(_KEYWORD_SENTENCES), 3: len(_KEYWORD_SENTENCES) + len(relation.sentences)}[variety]


def write_keywords(title: str, stated: Sequence[tuple[str, str]]) -> str:
    """The document at variety 1: "Amber Stone: employer Blue River, birthplace Green Lake."; `stated` holds (relation, object)."""
    return f"{title}: {', '.join([f'{relation} {value}' for relation, value in stated])}."


def write_sentences(title: str, kind: str, stated: Sequence[tuple[Relation, str]], choices: Sequence[int]) -> str:
    """The document at variety 2 and 3: a sentence that names the type, then one sentence a fact, by the number of its template."""
    sentences = [_state(relation, title, value, choice) for (relation, value), choice in zip(stated, choices, strict=True)]
    return " ".join([f"{title} is a {kind}.", *sentences])


def _state(relation: Relation, subject: str, value: str, choice: int) -> str:
    templates = (*_KEYWORD_SENTENCES, *relation.sentences)
    return templates[choice].format(s=subject, o=value, r=relation.name)
