"""Notes about films and people as Markdown pages that link each other, and a model that asks about them as an HTTP server plays it.

The model takes the pages for their word. Of each film it proposes where the director was born, well or with the slip that the film's number
stands for; when it is asked about passages it finds what stands in them, and it does not know which of its proposals is wrong.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from synth.corpora.seed_questions import SYSTEM
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
    messages = [message["content"] for message in body["messages"]]
    text = messages[-1]
    if messages[0] == SYSTEM:
        return _proposal(text)
    if "List every answer" in text:
        return f"Let me see.\n```json\n{json.dumps(_answers(text))}\n```"
    if "contradict the claim" in text:
        return json.dumps(_contradiction(text))
    if "right answer to the question" in text:
        return "Yes." if re.search(r"is '(Town \d+)'", text) else "No."
    return "Yes, it does." if "Does the passage state" in text else "I do not know."


def passage_with(text: str, words: str) -> int:
    """The number of the passage that holds the words."""
    return int(_NUMBERED.findall(text[: text.index(words)])[-1])


def _proposal(text: str) -> str:
    born = {person: (town, found) for found in _BORN.finditer(text) for person, town in [found.groups()]}
    known = [found for found in _DIRECTED.finditer(text) if found[2] in born]
    if not known:
        return json.dumps({"question": "What is said here?", "answer": "much"})
    film, person = known[0].groups()
    (town, said), slip = born[person], SLIPS[int(film.split()[1]) % len(SLIPS)]
    first = {"subject": film, "relation": "directed by", "object": person, "quote": known[0][0], "passage": passage_with(text, known[0][0])}
    second = {"subject": person, "relation": "born in", "object": town, "quote": said[0], "passage": passage_with(text, said[0])}
    if slip == "refusal":
        return "I'm sorry, but I can't help with that."
    if slip == "quote":
        second["quote"] = f"{person} first saw the light in {town}"
    if slip == "entity":
        second["object"] = "Atlantis"
    question = {"leak": f"Where was {person}, director of {film}, born?", "number": f"Where was the director of {film}, of 1821, born?"}
    asked = question.get(slip, f"Where was the director of {film} born?")
    proposal = {"question": asked, "answer": town, "projections": [first, second], "unknowns": [person]}
    if slip == "keys":
        proposal["triples"] = proposal.pop("projections")
    return f"Here it is:\n```json\n{json.dumps(proposal)}\n```\nI hope it helps."


def _answers(text: str) -> list[dict[str, Any]]:
    film = re.search(r"director of (Film \d+)", text.rpartition("Question:")[2])
    directors = [found[2] for found in _DIRECTED.finditer(text) if film is not None and found[1] == film[1]]
    born = [found for found in _BORN.finditer(text) if found[1] in directors]
    made_up = [{"answer": "Town 1000", "passage": 1, "quote": "Town 1000 it is"}]
    return [{"answer": found[2], "passage": passage_with(text, found[0]), "quote": found[0]} for found in born] + made_up


def _contradiction(text: str) -> dict[str, Any]:
    claim = re.search(r"Claim: (Person \d+) — born in — (Town \d+)", text)
    others = [found for found in _BORN.finditer(text) if claim is not None and found[1] == claim[1] and found[2] != claim[2]]
    if not others:
        return {"contradicted": False, "passage": None, "quote": None}
    return {"contradicted": True, "passage": passage_with(text, others[0][0]), "quote": others[0][0]}
