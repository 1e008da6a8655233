"""Facts read out of text: what is kept, what is dropped and why, and whom names mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from synth.corpora.config import ExtractionConfig
from synth.corpora.extraction import AmbiguousMention, ExtractionDefect, Linker, extract_facts
from synth.corpora.grounding import GroundingDefect, TypedFact, ground
from synth.formulas.projections import solve
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.teachers.readers import Readers
from synth.teachers.teacher import Fault
from tests.synth.corpora.harbour import stated
from tests.synth.scripted import ScriptedTeacher
from warehouse.corpora.corpus import Corpus
from warehouse.records import Document, Fact

STONE = Document("d1", "Amber Stone", "Amber Stone works for Blue River. She studied at Red Hill.", "wiki")
RIVER = Document("d2", "Blue River (company)", "Blue River is based in Green Lake. Stone works for Blue River.", "wiki")


def statement(subject: str, relation: str, value: str, quote: str, subject_type: str = "", object_type: str = "") -> dict[str, str]:
    return {**stated(subject, relation, value, quote), "subject_type": subject_type, "object_type": object_type}


WORKS = statement("Amber Stone", "works for", "Blue River", "Amber Stone works for Blue River", "person", "Company")
STUDIED = statement("Amber Stone", "studied at", "Red Hill", "She studied at Red Hill", "person")
BASED = statement("Blue River", "based in", "Green Lake", "Blue River is based in Green Lake")


def extract(
    by_document: dict[str, list[dict[str, str]] | str],
    documents: Sequence[Document] = (STONE,),
    verdict: str = "yes",
    config: ExtractionConfig | None = None,
    **known: Any,
) -> Corpus:
    """What comes of a teacher that states `by_document` (by the beginning of a passage) and says `verdict` in the second reading."""

    def answer(asked: str) -> str:
        if "Does the passage state" in asked:
            return json.dumps({"verdict": verdict})
        said = next((facts for start, facts in by_document.items() if f"Passage: {start}" in asked), [])
        return said if isinstance(said, str) else json.dumps(said)

    teacher = ScriptedTeacher(answer)
    return extract_facts(documents, teacher, Readers(teacher), config or ExtractionConfig(), **known)


def kinds(corpus: Corpus) -> list[str]:
    return [failure.kind for failure in corpus.failures]


def test_facts_come_with_their_documents_types_and_entities() -> None:
    corpus = extract({"Amber": [WORKS, STUDIED], "Blue": [BASED]}, (STONE, RIVER))
    assert corpus.failures == ()
    assert corpus.facts == (
        Fact("Amber Stone", "works_for", "Blue River", ("d1",), "wiki"),
        Fact("Amber Stone", "studied_at", "Red Hill", ("d1",), "wiki"),
        Fact("Blue River (company)", "based_in", "Green Lake", ("d2",), "wiki"),
    )
    assert corpus.types == {"Amber Stone": "person", "Blue River": "company"}
    assert corpus.documents == (STONE, RIVER)


def test_known_entities_and_aliases_join_what_documents_say() -> None:
    aliases = {"Blue River": "Blue River (company)"}
    stone = statement("Stone", "works for", "Blue River", "Stone works for Blue River")
    corpus = extract({"Amber": [WORKS], "Blue": [BASED, stone]}, (STONE, RIVER), aliases={**aliases, "Stone": "Amber Stone"})
    assert corpus.facts[0] == Fact("Amber Stone", "works_for", "Blue River (company)", ("d1", "d2"), "wiki")
    graph = KnowledgeGraph.of(corpus)
    assert solve(graph, (("C@Amber Stone", "works_for", "V@a"), ("V@a", "based_in", "?"))) == {"Green Lake"}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"relation": "founder of", "quote": "Amber Stone founded Blue River"}, GroundingDefect.QUOTE_NOT_FOUND),
        ({"subject": "Red Hill"}, GroundingDefect.SUBJECT_NOT_NAMED),
        ({"object": "Green Lake"}, GroundingDefect.OBJECT_NOT_NAMED),
        ({"object": "Amber  stone"}, GroundingDefect.SELF),
        ({"relation": " "}, GroundingDefect.EMPTY),
    ],
)
def test_what_the_passage_does_not_hold_is_dropped_with_its_statement(change: dict[str, str], kind: str) -> None:
    corpus = extract({"Amber": [{**WORKS, **change}, STUDIED]})
    assert [fact.relation for fact in corpus.facts] == ["studied_at"]
    assert kinds(corpus) == [kind]
    assert corpus.failures[0].item == {"document": "d1", "passage": "d1#0", "statement": {**WORKS, **change}}


@pytest.mark.parametrize(("verdict", "kind"), [("no", ExtractionDefect.NOT_STATED), ("perhaps", "unreadable")])
def test_a_second_reader_may_deny(verdict: str, kind: str) -> None:
    corpus = extract({"Amber": [WORKS]}, verdict=verdict)
    assert (len(corpus.facts), kinds(corpus)) == (verdict == "perhaps", [kind])
    assert len(extract({"Amber": [WORKS]}, verdict=verdict, config=ExtractionConfig(verify=False)).facts) == 1


@pytest.mark.parametrize("reply", ["I found no facts.", '[{"subject": "Amber Stone"}]'])
def test_a_reply_without_facts_to_read_is_a_failure_with_its_text(reply: str) -> None:
    corpus = extract({"Amber": reply})
    assert set(kinds(corpus)) == {Fault.MALFORMED}
    assert corpus.failures[0].item["text"] == reply


def test_a_mention_that_may_mean_two_is_not_guessed() -> None:
    linker = Linker((), {})
    linker.note("d", "Family", ("Amber Stone", "Red Stone", "Green Lake"))
    linker.note("other", "Family", ("Amber Stone",))
    with pytest.raises(AmbiguousMention, match="'Amber Stone' or 'Red Stone'"):
        linker.link("Stone", "d")
    assert linker.link("STONE", "other") == "Amber Stone"
    assert linker.link("Lake", "d") == "Green Lake"
    assert linker.link("Stone", "third") == "Stone"
    assert linker.link("Stone", "other") == "Amber Stone"


def test_figures_and_signs_make_another_entity() -> None:
    linker = Linker(["Se7en", "3.5", "-5", "C++", "Blue River"], {"C": "C (language)"})
    assert [linker.link(name, "d") for name in ("5", "C#", "c", "c++", "BLUE-RIVER")] == ["5", "C#", "C (language)", "C++", "Blue River"]
    linker.note("d", "Rates", ("3.5 percent", "Learning C", "Learning C++"))
    assert linker.link("5 percent", "d") == "5 percent"
    with pytest.raises(AmbiguousMention, match=r"'Learning C' or 'Learning C\+\+'"):
        linker.link("Learning", "d")
    stated = TypedFact(subject="C++", relation="not", object="C#", quote="C++ is not C#")
    assert ground(stated, "t", "C++ is not C#.") == stated.model_copy(update={"quote": "C++ is not C"})


TEXT = "The film is from 1921. It was directed by Alan Crosland, and Constance Binney stars in it."


@pytest.mark.parametrize(
    ("quote", "value", "kept"),
    [
        ("was directed by Alan Crosland", "Alan Crosland", "was directed by Alan Crosland"),
        ("It was Directed by alan crosland", "Alan Crosland", "It was directed by Alan Crosland"),
        (
            "It was directed by Alan Crosland, Constance Binney stars",
            "Alan Crosland",
            "It was directed by Alan Crosland, and Constance Binney stars",
        ),
        ("It was ... by Alan Crosland", "Alan Crosland", "It was directed by Alan Crosland"),
        ("Constance Binney stars", "Alan Crosland", "It was directed by Alan Crosland, and Constance Binney stars in it."),
        ("It was written by Alan Crosland", "Alan Crosland", "It was directed by Alan Crosland"),
        ("was directed by Bob Crosland", "Bob Crosland", GroundingDefect.QUOTE_NOT_FOUND),
        ("The film is from 1921", "Alan Crosland", GroundingDefect.OBJECT_NOT_NAMED),
    ],
)
def test_a_quotation_is_located_and_kept_in_the_words_of_its_passage(quote: str, value: str, kept: str) -> None:
    found = ground(TypedFact(subject="Room and Board", relation="r", object=value, quote=quote), "Room and Board (film)", TEXT)
    assert (found if isinstance(found, GroundingDefect) else found.quote) == kept


@pytest.mark.parametrize(
    ("subject", "relation", "value", "kept"),
    [
        ("Alan Crosland", "directed by", "Room and Board", ("Room and Board", "Alan Crosland")),
        ("Room and Board", "directed by", "Alan Crosland", ("Room and Board", "Alan Crosland")),
        ("Alan Crosland", "directed", "Room and Board", ("Alan Crosland", "Room and Board")),
        ("Constance Binney", "starring", "Room and Board", ("Room and Board", "Constance Binney")),
        ("Alan Crosland", "written by", "Constance Binney", ("Alan Crosland", "Constance Binney")),
    ],
)
def test_a_fact_that_its_quotation_has_the_other_way_round_is_turned(
    subject: str, relation: str, value: str, kept: tuple[str, str]
) -> None:
    text = "A film directed by Alan Crosland and starring Constance Binney."
    stated = TypedFact(subject=subject, relation=relation, object=value, quote=text, subject_type="one", object_type="other")
    found = ground(stated, "Room and Board (film)", text)
    assert isinstance(found, TypedFact) and (found.subject, found.object) == kept
    assert (found.subject_type == "one") == (found.subject == subject), "with its types"


def test_the_title_stands_for_no_one_by_whom_something_was_done() -> None:
    stated = TypedFact(subject="Constance Binney", relation="played by", object="Room and Board", quote="Constance Binney stars")
    assert isinstance(ground(stated, "Room and Board", TEXT), GroundingDefect)
