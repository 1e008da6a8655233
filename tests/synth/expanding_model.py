"""The Expander's model as an HTTP server plays it: it states what the documents say of a name, and describes the name by facts.

It sees what any model would see: its messages. In generated worlds it takes a document for its word, in films a few turns of phrase. It
does not know the graph, it errs now and then, and whether what it describes has a second answer it does not ask.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

from synth.corpora.expander import SYSTEM
from synth.questions.text_comparison import mentions
from tests.synth.scripted import LABELLED, calling, verdict
from tests.synth.writing_models import asked_in, chance_of

_DOCUMENT = re.compile(r"^\[([^\]\n]+)\] (.+)$", re.M)
_SENTENCE = re.compile(r"[^.]+")
_CLAIM = re.compile(r"Claim: (.*) — (.*) — (.*)")


@dataclass(frozen=True)
class Seen:
    """A fact as it was read."""

    subject: str
    relation: str
    object: str
    quote: str


def expanding_model(body: dict[str, Any]) -> str:
    """What the model writes, to the Expander's requests and to those that judge what it proposed."""
    messages = [str(message["content"] or "") for message in body["messages"]]
    if messages[0] != SYSTEM:
        return _judgement(asked_in(body), chance_of(body))
    name, secret = re.findall(r"^Name: (.*)$|^No fact may be about: (.*)$", messages[1], re.M)
    chance = random.Random(f"{name[0]} {body['seed']}")
    met = (text for text in messages[1:] if _DOCUMENT.search(text))
    seen = [fact for text in met for fact in read(text, name[0]) if not {fact.subject, fact.object} & set(secret[1].split("; "))]
    if not seen and len(messages) == 2:
        return calling("search", query=f"who or what has to do with {name[0]}")
    chance.shuffle(seen)
    stated = [{"subject": fact.subject, "relation": fact.relation, "object": fact.object, "quote": fact.quote} for fact in seen[:4]]
    if stated and chance.random() < 0.1:
        stated[0]["quote"] = "as everybody knows"
    return json.dumps(stated)


def read(text: str, name: str) -> list[Seen]:
    """What the documents of a search say of a name."""
    pieces = _DOCUMENT.split(text)
    found = list[Seen]()
    for title, content in zip(pieces[2::3], pieces[3::3], strict=True):
        for sentence in (match[0].strip() for match in _SENTENCE.finditer(content) if mentions(match[0], name)):
            relation = _relation(sentence, title, name)
            if relation is not None and title != name:
                found.append(Seen(title, relation, name, sentence))
    return found


def _relation(sentence: str, title: str, name: str) -> str | None:
    before = sentence.partition(name)[0]
    if sentence.startswith(f"{title}: "):
        return before.split()[-1] if before.split() else None
    if name.isdecimal():
        return "release year" if re.search(r"\b(?:is|was) an?\b", before) else None
    if "star" in before or "featur" in before:
        return "cast member"
    return "director" if "directed by" in before else None


def _described(facts: str) -> str:
    """Facts that end in `?` as a noun phrase."""
    relations = re.findall(r"^(.*) — (.*) — \? \(.*\)$", facts, re.M)
    return "the " + " and the ".join(f"{relation} of {subject}" for subject, relation in relations)


def _judgement(asked: str, chance: random.Random) -> str:
    if asked in LABELLED:
        return LABELLED[asked]
    if "Write a noun phrase" in asked:
        return json.dumps({"description": _described(asked.partition("\n\n")[0])})
    if "Is " in asked and "kind of thing" in asked:
        return verdict("yes" if chance.random() < 0.95 else "no")
    if asked.startswith("What is meant by"):
        return "I do not know."
    claim = _CLAIM.search(asked)
    if claim is None:
        return "There is nothing about that."
    passage = asked.partition("Claim:")[0]
    return verdict("yes" if all(mentions(passage, part) for part in (claim[1], claim[3])) else "no")
