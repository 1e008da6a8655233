"""Notes about films and people as Markdown pages that link each other, and a model that asks about them as an HTTP server plays it.

The model takes the pages for their word. Of each page it states what it says, well or with the slip that the film's number stands for, and
it words the questions that it is given. When it is asked about passages it finds what stands in them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from synth.corpora.statements import SYSTEM
from tests.synth.scripted import LABELLED, asked_first, verdict
from warehouse import Document
from warehouse.corpora.files import read_pages

PEOPLE = 6
SLIPS = ("", "refusal", "keys", "quote", "entity", "leak", "number", "")
"""What is wrong with the proposal about the film of that number, modulo their count."""
_DIRECTED = re.compile(r"(Film \d+) was directed by (Person \d+)")
_BORN = re.compile(r"(Person \d+) was born in (Town \d+)")
_NUMBERED = re.compile(r"^\[(\d+)\] ", re.M)


def write_notes(folder: Path, films: int) -> Path:
    """A page a film and one a person; an archive says otherwise of Person 2, and a poster gives Film 7 a second director."""
    (folder / "people").mkdir(parents=True)
    for number in range(films):
        person = number % PEOPLE
        said = f"Film {number} was directed by [Person {person}](people/person%20{person}.md). It was shown in 19{50 + number}."
        (folder / f"film_{number}.md").write_text(f"# Film {number}\n\n{said}\n")
    for number in range(PEOPLE):
        (folder / "people" / f"person {number}.md").write_text(f"# Person {number}\n\nPerson {number} was born in Town {number}.\n")
    (folder / "archive.txt").write_text("By the records Person 2 was born in Town 99, whatever others say.\n")
    (folder / "poster.txt").write_text("On the poster it says that Film 7 was directed by Person 4.\n")
    return folder


def notes(folder: Path, films: int) -> tuple[Document, ...]:
    """The same as documents."""
    return read_pages(write_notes(folder, films)).documents


def asking_model(body: dict[str, Any]) -> str:
    """What the model writes, whatever it is asked."""
    messages = [str(message["content"]) for message in body["messages"]]
    text = asked_first(messages)
    if text in LABELLED:
        return LABELLED[text]
    if messages[0] == SYSTEM:
        return _facts(text)
    if "Write a question that begins with" in text:
        return json.dumps({"question": _worded(text)})
    if "List every answer" in text:
        return f"Let me see.\n```json\n{json.dumps(_answers(text))}\n```"
    if "\n\nQuestion: " in text and "right answer to the question" not in text:
        return json.dumps({"answer": next((each["answer"] for each in _answers(text) if each["answer"] != "Town 1000"), None)})
    if "Does one of these passages contradict" in text:
        return verdict("yes" if _contradiction(text)["contradicted"] else "no")
    if "contradict the claim" in text:
        return json.dumps(_contradiction(text))
    if "right answer to the question" in text:
        return verdict("yes" if re.search(r"is '(Town|Film|Person) \d+'", text) else "no")
    return verdict("yes") if "Does the passage state" in text else "I do not know."


def passage_with(text: str, words: str) -> int:
    """The number of the passage that holds the words."""
    return int(_NUMBERED.findall(text[: text.index(words)])[-1])


def _facts(text: str) -> str:
    """The fact of a page, with a slip for some films."""
    directed, born = _DIRECTED.search(text), _BORN.search(text)
    if directed is None and born is None:
        return "[]"
    found, relation = (directed, "directed by") if directed is not None else (born, "born in")
    assert found is not None
    fact = {"subject": found[1], "relation": relation, "object": found[2], "quote": found[0]}
    slip = _slip(found[1]) if directed is not None and text.startswith(f"Title: {found[1]}") else ""
    if slip == "refusal":
        return "I'm sorry, but I can't help with that."
    if slip == "quote":
        fact |= {"object": "Erewhon", "quote": f"{found[2]} had the last word in it"}
    if slip == "entity":
        fact["object"] = "Atlantis"
    if slip == "keys":
        fact["phrase"] = fact.pop("quote")
    return f"Here it is:\n```json\n{json.dumps([fact])}\n```\nI hope it helps."


def _slip(film: str) -> str:
    return SLIPS[int(film.split()[1]) % len(SLIPS)]


def _worded(text: str) -> str:
    """A question over the facts of the request, in which `?` stands for the answer."""
    facts = re.sub(r" \(thing\)", "", text.partition("\n\n")[0])
    films, towns, people = (re.findall(rf"{kind} \d+", facts) for kind in ("Film", "Town", "Person"))
    if "born in — ?" in facts:
        by = f"the director of {films[0]}" if films else people[0] if people else f"the one of {towns[0]}"
        question = f"Where was {by} born?"
    elif "? — directed by" in facts:
        question = f"Which film was directed by {f'the one born in {towns[0]}' if towns else people[0] if people else films[0]}?"
    else:
        question = " and ".join([*(f"Who directed {film}" for film in films), *(f"who was born in {town}" for town in towns)]) + "?"
    slip = _slip(films[0]) if films else ""
    person = f"Person {int(films[0].split()[1]) % PEOPLE}" if films else ""
    return {"leak": f"{question[:-1]}, {person}?", "number": f"{question[:-1]}, in 1821?"}.get(slip, question)


def _answers(text: str) -> list[dict[str, Any]]:
    """Whatever the passages say in answer to a question, and something that they do not say."""
    question = text.rpartition("Question:")[2].partition("\n")[0]
    directed, born = list(_DIRECTED.finditer(text)), list(_BORN.finditer(text))
    films, towns, people = (set(re.findall(rf"{kind} \d+", question)) for kind in ("Film", "Town", "Person"))
    directors = people | {found[2] for found in directed if found[1] in films}
    if "Where" in question:
        hits = [(found[2], found[0]) for found in born if found[1] in directors]
    elif "Which film" in question:
        makers = people | {found[1] for found in born if found[2] in towns}
        hits = [(found[1], found[0]) for found in directed if found[2] in makers]
    else:
        natives = {found[1] for found in born if found[2] in towns}
        hits = [(found[2], found[0]) for found in directed if found[1] in films and (not towns or found[2] in natives)]
        hits += [(found[1], found[0]) for found in born if not films and found[2] in towns]
    listed = [{"answer": answer, "passage": passage_with(text, quote), "quote": quote} for answer, quote in dict(hits).items()]
    return [*listed, {"answer": "Town 1000", "passage": 1, "quote": "Town 1000 it is"}][-10:]


def _contradiction(text: str) -> dict[str, Any]:
    claim = re.search(r"Claim: (Person \d+) — born in — (Town \d+)", text)
    others = [found for found in _BORN.finditer(text) if claim is not None and found[1] == claim[1] and found[2] != claim[2]]
    if not others:
        return {"contradicted": False, "passage": None, "quote": None}
    return {"contradicted": True, "passage": passage_with(text, others[0][0]), "quote": others[0][0]}
