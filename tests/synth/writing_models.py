"""Models as an HTTP server plays them: what a fair model of some skill replies to each kind of request, by its body alone."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from tests.eval.test_judges import grading, strict
from tests.synth.scripted import LABELLED, asked_first, calling, verdict
from warehouse.digests import digest

THOUGHTS = ("I think that {} would help", "Perhaps {} is what we need here", "It might be best to go for {} now", "Let us try {}")
_TAKEN = re.compile(r"now calls (\w+) with: (.*)\n")


def chance_of(body: dict[str, Any]) -> random.Random:
    """What a model draws by: two requests of one text and different seeds have replies of their own."""
    return random.Random(digest(body))


def asked_in(body: dict[str, Any]) -> str:
    """What is asked, before any reply was rejected."""
    return asked_first([str(message["content"]) for message in body["messages"]])


def decision_writer(body: dict[str, Any]) -> str:
    """An action in a style of its own: the one to rewrite, or another one."""
    asked, chance = asked_in(body), chance_of(body)
    found = _TAKEN.search(asked)
    tool, argument = (found[1], found[2]) if found else (chance.choice(("search", "answer")), f"place {chance.randrange(200)}")
    return json.dumps({"think": chance.choice(THOUGHTS).format(argument), "tool": tool, "arguments": argument})


def decision_player(body: dict[str, Any]) -> str:
    """Writes options, and as a player searches for the place that was asked about, knows its city, or does not."""
    if "Reply with one line of JSON" in asked_in(body):
        return decision_writer(body)
    place = _after(r"where is place (\d+)", str(body["messages"][1]["content"]))
    said = (calling("search", query=f"place {place}"), f"city {place}", "I cannot say.")
    return chance_of(body).choice(said[len(body["messages"]) > 5 :])


def first_order_model(body: dict[str, Any]) -> str:
    """Questions over a slice, plans, judgements of plans, two passes of reasoning, and grades; each at times not as it should be."""
    asked, chance = asked_in(body), chance_of(body)
    if asked in LABELLED:
        return LABELLED[asked]
    if asked.startswith("Known statements"):
        return _questions(asked, chance)
    if "Plan how" in asked:
        query = _after(r"Question: .* of (.*)\?", asked) or _after(r"Question: (.*)", asked)
        return json.dumps({"plan": ["find the page", "read it there"], "tool": "search", "arguments": query})
    if "A plan to find it" in asked:
        return verdict("yes" if chance.random() < 0.7 else "no")
    if "You grade one answer" in asked:
        return grading(strict)(body)
    if "What is known" in asked:
        return _reasoned(asked, chance)
    return "Let me think. It may be this or that. <answer>nobody</answer>"


_STATED = re.compile(r"^(?:\d+\.|-) (.*?): (.*?) ((?:[A-Z]\w*)(?: [A-Z]\w*)*|\d+)\.?(?: \(\d+\))?$", re.M)
"""A statement whose last words are a value: what it is about, its relation, the value."""


def _questions(asked: str, chance: random.Random) -> str:
    """A good question about one statement, and now and then one that rests on a statement that is not there."""
    numbered = [(number, found) for number, line in enumerate(asked.splitlines()[1:], start=1) if (found := _STATED.match(line))]
    if not numbered:
        return "There is nothing to ask."
    number, found = chance.choice(numbered)
    entity, relation, value = found.groups()
    requires = [99] if chance.random() < 0.15 else [number]
    return json.dumps({"question": f"What is the {relation} of {entity}?", "answer": value, "requires": requires})


def _reasoned(asked: str, chance: random.Random) -> str:
    """Reasoning on the first known line that has a value; its answer is at times in other words, and at times wrong."""
    found = _STATED.search(asked.split("What is known:")[1])
    entity, relation, value = found.groups() if found else ("it", "name", "Nobody")
    answer = chance.choice((value, value, f"It is {value}.", "Somebody Else"))
    return f"It is known of {entity} that its {relation} is {answer}, and so the answer follows. <answer>{answer}</answer>"


def _after(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""
