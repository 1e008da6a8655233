"""Somebody's notes: pages of Markdown about ferries and their captains, and a model that writes about them as an HTTP server plays it.

The model takes the pages for their word, whatever it is asked: for a question of a walk, for what speaks against one, for questions over
statements, plans, judgements, reasoning, or the next call in the environment. It errs as its server makes it err, and seldom by itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from synth.corpora.statements import SYSTEM
from tests.eval.test_judges import grading, strict
from tests.synth.scripted import LABELLED, calling, verdict
from tests.synth.writing_models import asked_in, chance_of

_FERRIES = (
    "Aldra Borgund Dunvik Ellary Farrow Gannet Harlyn Jarlsey Kelda Lomvik Marwick Norsund Orsay Pentire Quarrel Rathlin Skerry Tarbert"
)
_CAPTAINS = "Ann Berg, Ole Dahl, Ida Holm, Per Lund, Eva Strand, Carl Vogt, Britt Crane, Nils Aker, Tove Brandt"
_TOWNS = "Vesten, Ostmark, Norby, Lunden, Sandvika, Hamar, Kirkby, Thornby, Ulvik"
_EXAM = ("Unsay Valtos Wexby Yarrow Corran Fiddra", "Rolf Sunde, Mari Tveit, Knut Ekdal", "Alvik, Brekke, Drammen")
_NAME = r"([A-Z]\w+ [A-Z]\w+)"
_SAILS = re.compile(rf"(\w+ Ferry) sails under \[?{_NAME}")
_BORN = re.compile(rf"{_NAME} was born in (\w+)")
_BUILT = re.compile(r"(\w+ Ferry) .*?It was built in (\d{4})")
_NUMBERED = re.compile(r"^\[(\d+)\] ", re.M)


def write_notes(folder: Path) -> Path:
    """The pages that are trained on."""
    return _write(folder, _FERRIES.split(), _CAPTAINS.split(", "), _TOWNS.split(", "))


def write_exam(folder: Path) -> Path:
    """Pages about other ferries and captains."""
    ferries, captains, towns = _EXAM
    return _write(folder, ferries.split(), captains.split(", "), towns.split(", "))


def _write(folder: Path, ferries: list[str], captains: list[str], towns: list[str]) -> Path:
    """A page a ferry, which links its captain's, and a page a captain."""
    (folder / "captains").mkdir(parents=True)
    for number, name in enumerate(ferries):
        captain = captains[number % len(captains)]
        link = f"[{captain}](captains/{_file(captain)})"
        said = f"{name} Ferry sails under {link}. It was built in {1950 + 3 * number}."
        (folder / f"{name.lower()}.md").write_text(f"# {name} Ferry\n\n{said}\n")
    for captain, town in zip(captains, towns, strict=True):
        (folder / "captains" / _file(captain)).write_text(f"# {captain}\n\n{captain} was born in {town}.\n")
    return folder


def _file(name: str) -> str:
    return f"{name.lower().replace(' ', '_')}.md"


def writing_model(body: dict[str, Any]) -> str:
    """What the model writes, whatever it is asked."""
    first, text = str(body["messages"][0]["content"]), asked_in(body)
    if text in LABELLED:
        return LABELLED[text]
    if first.startswith("Solve the task by calling tools"):
        return _action([str(message["content"]) for message in body["messages"]])
    if first == SYSTEM:
        return _facts(text)
    for words, reply in (
        ("List every answer", lambda: json.dumps(_answers(text))),
        ("Does one of these passages contradict", lambda: verdict("no")),
        ("contradict the claim", lambda: json.dumps({"contradicted": False, "passage": None, "quote": None})),
        ("Write a question that begins with", lambda: json.dumps({"question": _worded(text)})),
        ("right answer to the question", lambda: verdict("no")),
        ("Does the passage state", lambda: verdict("yes")),
        ("Known statements", lambda: _questions(text, body)),
        ("Plan how", lambda: _plan(text)),
        ("A plan to find it", lambda: verdict("yes" if chance_of(body).random() < 0.9 else "no")),
        ("You grade one answer", lambda: grading(strict)(body)),
        ("What is known", lambda: _reasoned(text)),
        ("\n\nQuestion: ", lambda: json.dumps({"answer": answer_in(*reversed(text.split("\n\nQuestion: ")))})),
    ):
        if words in text:
            return reply()
    return "I go by what I remember. <answer>nobody</answer>"


def answer_in(question: str, text: str) -> str | None:
    """What `text` says in answer to one of the model's questions; None where it says nothing."""
    ferry, captain = re.search(r"\w+ Ferry", question), re.search(rf"{_NAME}(?<! Ferry) born", question)
    sails, born, built = (dict(pattern.findall(text)) for pattern in (_SAILS, _BORN, _BUILT))
    if "year" in question:
        return built.get(ferry[0]) if ferry else None
    if "Which ferry" in question:
        under = sails.get(ferry[0]) if ferry else question.partition("under ")[2].rstrip("?\n ")
        return next((other for other, named in sails.items() if named == under and other not in question), None)
    if "born" not in question or "Who is" in question:
        return sails.get(ferry[0]) if ferry else None
    person = captain[1] if captain else sails.get(ferry[0]) if ferry else None
    return None if person is None else born.get(person)


def _facts(text: str) -> str:
    """What a page says, as facts."""
    found = [("sails under", each) for each in _SAILS.finditer(text)] + [("born in", each) for each in _BORN.finditer(text)]
    facts = [{"subject": each[1], "relation": relation, "object": each[2], "quote": each[0]} for relation, each in found]
    return json.dumps(facts)


def _worded(text: str) -> str:
    """A question over the facts of the request, as the model's other questions are put; `?` stands for the answer."""
    facts = re.sub(r" \(thing\)", "", text.partition("\n\n")[0])
    ferry, person = re.search(r"\w+ Ferry", facts), re.search(_NAME, re.sub(r"\w+ Ferry", "", facts))
    named = re.findall(r"names (.*)\.$", text)[-1]
    if "born in — ?" in facts and ferry:
        return f"Where was the captain of {ferry[0]} born?"
    if "sails under — ?" in facts and ferry:
        return f"Who is the captain of {named.replace(' and ', ', born in ')}?"
    return f"Which ferry sails under {person[1]}?" if person else f"Which ferry has the captain of {named}?"


def _answers(text: str) -> list[dict[str, Any]]:
    passages, _, question = text.rpartition("Question:")
    answer = answer_in(question, passages)
    if answer is None:
        return []
    quotes = [found[0] for pattern in (_SAILS, _BORN) for found in pattern.finditer(passages) if answer in found.groups()]
    return [{"answer": answer, "passage": int(_NUMBERED.findall(passages[: passages.index(quotes[0])])[-1]), "quote": quotes[0]}]


def _questions(text: str, body: dict[str, Any]) -> str:
    """A question over one of the statements, and now and then one that rests on nothing."""
    rows, chance = [], chance_of(body)
    for number, line in enumerate(text.splitlines()[1:], start=1):
        for pattern, question in ((_BUILT, "In which year was {} built?"), (_BORN, "Where was {} born?")):
            for found in pattern.finditer(line):
                requires = [] if chance.random() < 0.1 else [number]
                rows.append({"question": question.format(found[1]), "answer": found[2], "requires": requires})
    return json.dumps(chance.choice(rows)) if rows else "There is nothing to ask."


def _plan(text: str) -> str:
    named = re.search(rf"\w+ Ferry|{_NAME} born", text.partition("\n")[0].removeprefix("Question: "))
    query = named[0].removesuffix(" born") if named else "ferry"
    return json.dumps({"plan": [f"find the page of {query}", "read it there"], "tool": "search", "arguments": query})


def _reasoned(text: str) -> str:
    question = text.partition("\n")[0]
    answer = answer_in(question, text.partition("What is known:")[2]) or "nobody"
    return f"The page that is known says it in so many words: {answer}. The answer follows from it. <answer>{answer}</answer>"


def _action(messages: list[str]) -> str:
    """The next call: the page of what the question names, then that of the captain, then the answer."""
    question, seen = messages[1], "\n".join(messages[2:])
    answer = answer_in(question, seen)
    if answer is not None:
        return f"<think>It says so.</think>{answer}"
    captain = answer_in(question.replace("born", ""), seen)
    named = re.search(r"\w+ Ferry", question)
    query = captain or (named[0] if named else question)
    return calling("search", f"I need the page of {query}.\n", query=query)
