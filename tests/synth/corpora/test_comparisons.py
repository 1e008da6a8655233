"""Questions which of two things came first: only from dates of the same event, and answered by the earlier one."""

from __future__ import annotations

import json
import random

from rl.retrieval.search import SearchIndex
from synth.corpora.comparisons import Comparison, comparisons
from synth.corpora.config import PASSAGE_CHARACTERS, SeedsConfig
from synth.corpora.counter_evidence import PassageSearch
from synth.corpora.grounding import TypedFact
from synth.corpora.outlines import QuotedFact
from synth.corpora.passages import LinkedPassages, Passage
from synth.corpora.seed_questions import ASKED, SeedGenerator
from synth.teachers.readers import Readers
from tests.synth.scripted import ScriptedTeacher
from warehouse import Document

YEARS = {"Night Boat": "1990", "Salt Road": "3 May 1979"}


def dated(name: str, object_: str, relation: str = "released in", kind: str = "film") -> QuotedFact:
    fact = TypedFact(subject=name, relation=relation, object=object_, quote=f"{name} {object_}", subject_type=kind, object_type="date")
    return QuotedFact(fact, Passage(f"{name}#0", name, name, f"{name} was released in {object_}."))


def asked(*facts: QuotedFact) -> list[Comparison]:
    return comparisons(facts, 9, random.Random(0))


def test_the_earlier_one_is_the_answer() -> None:
    (made,) = asked(dated("Night Boat (film)", "1990"), dated("Salt Road", "3 May 1979", "was released"))
    assert made.words in {f"Which film was released first, {pair}?" for pair in ("Night Boat or Salt Road", "Salt Road or Night Boat")}
    assert made.answer == "Salt Road" and made.formula == () and len(made.documents) == 2


def test_what_cannot_be_compared_is_not_asked() -> None:
    boat = dated("Night Boat", "1990")
    for other in (
        dated("Salt Road", "1990"),
        dated("Salt Road", "1979", "set in"),
        dated("Salt Road", "1979", "filmed in"),
        dated("Salt Road", "1979", kind="novel"),
        dated("Salt Road", "spring"),
        dated("the road", "1979"),
        dated("Night Boat", "1979"),
    ):
        assert asked(boat, other) == []


def test_each_fact_is_used_once_and_no_more_are_made_than_asked_for() -> None:
    facts = [dated(f"Film {number}", str(1900 + number)) for number in range(9)]
    assert len(asked(*facts)) == 4 and len(comparisons(facts, 2, random.Random(0))) == 2


def test_a_comparison_becomes_a_task_with_its_quotations() -> None:
    pages = [Document(name, name, f"{name} is a film released in {year}.", "t") for name, year in YEARS.items()]
    linked = LinkedPassages.of(pages, PASSAGE_CHARACTERS, 5)

    def says(text: str) -> str:
        if text.startswith("Title: "):
            name = next(name for name in YEARS if text.startswith(f"Title: {name}"))
            return json.dumps([dated(name, YEARS[name]).fact.model_copy(update={"quote": f"released in {YEARS[name]}"}).model_dump()])
        return json.dumps({"verdict": "yes" if "Does the passage state" in text else "no", "question": "?"})

    teacher = ScriptedTeacher(says)
    config = SeedsConfig(count=2, passages=1, comparisons=0.5)
    generator = SeedGenerator(teacher, Readers(teacher), PassageSearch(linked), SearchIndex(pages), config)
    walks = linked.walks(2, 1, 0)
    result = generator.make(walks, 4)
    (task,) = result.tasks
    assert task.answers == ("Salt Road",) and task.provenance["shape"] == "comparison" and result.survived[ASKED] == 3
    assert [each["quote"] for each in task.provenance["projections"]] == [
        f"released in {YEARS[place[:-2]]}" for place in task.provenance["walk"]
    ]
    assert not generator.make(walks, 4, frozenset({task.key})).tasks
