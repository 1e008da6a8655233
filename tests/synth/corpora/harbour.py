"""A few documents about a harbour, a graph that knows part of what they say, questions over them, and what may stand for a name."""

from __future__ import annotations

from synth.corpora.grounding import TypedFact
from synth.corpora.outlines import Outline, QuotedFact
from synth.corpora.passages import Passage
from warehouse import Document, Fact, Task

DOCUMENTS = (
    Document("d1", "Amber Stone", "Amber Stone works for Blue River. Amber Stone studied at Fern Hall.", "test"),
    Document("d2", "Blue River", "Blue River is based in Green Lake, in the county of Red Hill.", "test"),
    Document("d3", "Quiet Field", "Quiet Field is a film. It stars Amber Stone. It was shot in 1999 in Green Lake.", "test"),
    Document("d4", "Harbour Inn", "Harbour Inn stands in Green Lake. Its cook is Carl Reed.", "test"),
    Document("d5", "Green Lake", "Green Lake lies near Red Hill.", "test"),
    Document("d6", "White Sail", "White Sail is based in Grey Cove, in the county of Red Hill. Carl Reed works there.", "test"),
    Document("d7", "Loud Field", "Loud Field is a film with Carl Reed.", "test"),
)
BY_ID = {document.id: document for document in DOCUMENTS}
FACTS = (
    Fact("Amber Stone", "employer", "Blue River", ("d1",), "test"),
    Fact("Blue River", "seat", "Green Lake", ("d2",), "test"),
    Fact("Blue River", "county", "Red Hill", ("d2",), "test"),
    Fact("White Sail", "county", "Red Hill", ("d6",), "test"),
    Fact("White Sail", "seat", "Grey Cove", ("d6",), "test"),
    Fact("Carl Reed", "employer", "White Sail", ("d6",), "test"),
    Fact("Quiet Field", "star", "Amber Stone", ("d3",), "test"),
    Fact("Loud Field", "star", "Carl Reed", ("d7",), "test"),
)
TASK = Task("k", "search", "base of Blue River?", ("Green Lake",), (("C@Blue River", "seat", "?"),))
TWO = Task(
    "two",
    "search",
    "film with Amber Stone, shot in Green Lake?",
    ("Quiet Field",),
    (("?", "star", "C@Amber Stone"), ("?", "place", "C@Green Lake")),
)
"""A question of two constants."""


def stated(subject: str, relation: str, value: str, quote: str = "q") -> dict[str, str]:
    """A fact as a model states it."""
    return {"subject": subject, "relation": relation, "object": value, "quote": quote}


FACT = stated("Amber Stone", "employer", "Blue River", "Amber Stone works for Blue River")
STAR = stated("Quiet Field", "star", "Amber Stone", "It stars Amber Stone")
STUDIED = stated("Amber Stone", "school", "Fern Hall", "Amber Stone studied at Fern Hall")
COUNTY = stated("Blue River", "county", "Red Hill", "in the county of Red Hill")
SEAT = stated("Harbour Inn", "town", "Green Lake", "Harbour Inn stands in Green Lake")


def outline(name: str, words: str, *facts: dict[str, str], unknowns: tuple[str, ...] = ()) -> Outline:
    """A worded outline over facts of these documents, each on the page that has its quotation."""
    return Outline(tuple(map(quoted, facts)), name, unknowns, words)


def quoted(fact: dict[str, str]) -> QuotedFact:
    """The fact on the page that has its quotation, else on the first."""
    page = next((document for document in DOCUMENTS if fact["quote"] in document.text), DOCUMENTS[0])
    return QuotedFact(TypedFact.model_validate(fact), Passage(page.id, page.id, page.title, page.text))


GOOD = outline("Blue River", "the workplace of Amber Stone", FACT)
DEEP = outline("Blue River", "the workplace of the star of Quiet Field", FACT, STAR, unknowns=("Amber Stone",))
