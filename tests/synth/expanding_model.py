"""The Expander's model as an HTTP server plays it: it searches for the name, reads what comes, and describes the name by what it read.

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
    document: str


def expanding_model(body: dict[str, Any]) -> str:
    """What the model writes, to the Expander's requests and to those that judge what it proposed."""
    messages = [message["content"] for message in body["messages"]]
    if messages[0] != SYSTEM:
        return _judgement(asked_in(body), chance_of(body))
    goal = dict(line.split(": ", 1) for line in messages[1].splitlines() if ": " in line)
    name = goal["Name to replace"]
    secret = [goal["Answer of the question"], *goal.get("Taken", "").split("; ")]
    if len(messages) == 2:
        return calling("search", f"What is said of {name}?\n", query=name)
    chance = random.Random(f"{name} {body['seed']}")
    found = [fact for fact in read(messages[3], name) if not any(part in secret for part in (fact.subject, fact.object))]
    if not found and len(messages) == 4:
        return calling("search", query=f"who or what has to do with {name}")
    chance.shuffle(found)
    proposal = _proposal(name, found)
    if proposal is not None and chance.random() < 0.1:
        proposal["facts"][0]["quote"] = "as everybody knows"
    return json.dumps(proposal or {"description": f"the thing called {name}", "facts": []})


def read(text: str, name: str) -> list[Seen]:
    """What the documents of a search say of a name."""
    pieces = _DOCUMENT.split(text)
    found = list[Seen]()
    for identity, title, content in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        for sentence in (match[0].strip() for match in _SENTENCE.finditer(content) if mentions(match[0], name)):
            relation = _relation(sentence, title, name)
            if relation is not None and title != name:
                found.append(Seen(title, relation, name, sentence, identity))
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


def _proposal(name: str, found: list[Seen]) -> dict[str, Any] | None:
    """A name is described by one thing that it belongs to; an actor, of whom a film has several, by two."""
    chosen = found[:1] if not found or found[0].relation not in ("cast member", "director") else _two(found)
    if not chosen:
        return None
    description = f"the {chosen[0].relation} of " + " and of ".join(fact.subject for fact in chosen)
    return {"description": description, "facts": [vars(fact).copy() for fact in chosen]}


def _two(found: list[Seen]) -> list[Seen]:
    same = [fact for fact in found if fact.relation == found[0].relation]
    return list({fact.subject: fact for fact in same}.values())[:2]


def _judgement(asked: str, chance: random.Random) -> str:
    if asked in LABELLED:
        return LABELLED[asked]
    if "Is " in asked and "kind of thing" in asked:
        return verdict("yes" if chance.random() < 0.95 else "no")
    if asked.startswith("What is meant by"):
        return "I do not know."
    claim = _CLAIM.search(asked)
    if claim is None:
        return "There is nothing about that."
    passage = asked.partition("Claim:")[0]
    return verdict("yes" if all(mentions(passage, part) for part in (claim[1], claim[3])) else "no")
