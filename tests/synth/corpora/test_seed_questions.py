"""Questions of documents alone: linked passages and walks, what is wrong with a proposal, and what searches find against one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl.retrieval.search import SearchIndex
from synth.corpora.config import SeedsConfig
from synth.corpora.passages import LinkedPassages, Walk
from synth.corpora.seed_proposals import Seed, SeedProposal, objection_to_entities, objection_to_quotes, objection_to_words
from synth.corpora.seed_questions import ASKED, CHECKS, PassageSearch, SeedGenerator, SeedQuestions, shortfall
from tests.synth.scripted import ScriptedTeacher
from warehouse import Document

PAGES = (
    Document(
        "films/boat.md", "Night Boat", 'Night Boat was made by [the mason](../people/amber%20stone.md "x"). It came out in 1990.', "t"
    ),
    Document("people/amber stone.md", "Amber Stone", "Amber Stone lives in [[Green Lake|the town]]. She saw Carl Reed.", "t"),
    Document("lake.md", "Green Lake", "## Where\n\n_Wet_ place.", "t"),
    Document("inn.txt", "inn", "At the inn the cook is Carl Reed.", "t"),
    Document("list.txt", "list", "What we like: Night Boat.", "t"),
    Document("alone.txt", "alone", "Nothing that [others](https://x.test/lake.md) or [none](gone.md) say.", "t"),
)
LINKED = LinkedPassages.of(PAGES, 1_200, 5)
WALK = Walk((LINKED.passages[0], LINKED.passages[1]), (LINKED.links[0][0],))
MADE = {"subject": "Night Boat", "relation": "made by", "object": "the mason", "quote": "Night Boat was made by the mason", "passage": 1}
YEAR = {"subject": "Night Boat", "relation": "year", "object": "1990", "quote": "It came out in 1990", "passage": 1}
GOOD: dict[str, Any] = {"question": "Who made Night Boat?", "answer": "the mason", "projections": [MADE], "unknowns": []}


def seed(**other: Any) -> Seed:
    return Seed(WALK, SeedProposal.model_validate({**GOOD, **other}))


def test_pages_are_linked_by_links_titles_and_rare_names() -> None:
    found = {(p.document, PAGES[link.to].id, link.kind) for p, links in zip(LINKED.passages, LINKED.links, strict=True) for link in links}
    there = {
        ("films/boat.md", "people/amber stone.md", "link"),
        ("people/amber stone.md", "lake.md", "link"),
        ("inn.txt", "people/amber stone.md", "name"),
        ("list.txt", "films/boat.md", "title"),
    }
    assert found == there | {(other, one, kind) for one, other, kind in there}, "both ways, and none to other places"
    assert not any(link.kind == "name" for links in LinkedPassages.of([*PAGES, *_cooks(4)], 1_200, 5).links for link in links)


def _cooks(count: int) -> list[Document]:
    return [Document(f"c{number}", f"c{number}", "It was Carl Reed.", "t") for number in range(count)]


def test_walks_are_drawn_by_their_seed_and_no_two_alike() -> None:
    walks = LINKED.walks(50, 3, 7)
    met = [frozenset(passage.id for passage in walk.passages) for walk in walks]
    assert walks == LINKED.walks(50, 3, 7) and walks[:2] == LINKED.walks(2, 3, 7) and LINKED.walks(2, 3, 8) != walks[:2]
    assert len(met) == len(set(met)) and {len(each) for each in met} == {2, 3}
    for walk in (walk for drawn in range(40) for walk in LINKED.walks(50, 3, drawn)):
        assert len({passage.document for passage in walk.passages}) == len(walk.passages) == len(walk.links) + 1
    assert not LinkedPassages.of(PAGES[-1:], 1_200, 5).walks(5, 2, 0)
    assert len(LinkedPassages.of(PAGES[-1:], 1_200, 5).walks(5, 1, 0)) == 1
    assert "passages = 1" in shortfall(5, 0, 2).reason


@pytest.mark.parametrize(
    ("check", "other", "kind"),
    [
        (objection_to_quotes, {"projections": [{**MADE, "passage": 3}]}, "passage_unknown"),
        (objection_to_quotes, {"projections": [{**MADE, "passage": 2}]}, "quote_not_found"),
        (objection_to_entities, {"projections": [{**MADE, "object": "Carl Reed"}]}, "object_not_named"),
        (objection_to_entities, {"answer": "Carl Reed"}, "answer_not_stated"),
        (objection_to_entities, {"unknowns": ["the Mason"]}, "met_twice"),
        (objection_to_entities, {"projections": [MADE, YEAR]}, "constant_edge"),
        (objection_to_entities, {"projections": [{**MADE, "alternatives": ["Carl Reed"]}]}, "malformed_formula"),
        (objection_to_entities, {"projections": [{**YEAR, "alternatives": ["a | b"]}], "answer": "Night Boat"}, "malformed_formula"),
        (objection_to_words, {"question": "Did the Mason make Night Boat?"}, "leaked"),
        (objection_to_words, {"question": "Who made it?"}, "not_named"),
        (objection_to_words, {"question": "Who made Night Boat in 1821?"}, "number_not_stated"),
    ],
)
def test_a_wrong_proposal_is_refused_with_its_kind(check: Any, other: dict[str, Any], kind: str) -> None:
    assert check(seed()) is None
    objection = check(seed(**other))
    assert objection is not None and objection.kind == kind


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": "x" * 601},
        {"projections": [MADE] * 9},
        {"projections": [{**MADE, "alternatives": ["x"] * 4}]},
    ],
)
def test_what_a_teacher_writes_is_bounded(wrong: dict[str, Any]) -> None:
    result, _ = made(propose=json.dumps({**GOOD, **wrong}))
    assert {failure.kind for failure in result.failures} == {"malformed"} and result.survived["readable"] == 0


def made(
    propose: str | None = None,
    stated: str | None = "yes",
    contradiction: str | None = '{"contradicted": false}',
    answers: str | None = '[{"answer": "The Mason", "passage": 1, "quote": "made by the mason"}]',
    fits: str | None = "no",
    stored: frozenset[str] = frozenset(),
) -> tuple[SeedQuestions, ScriptedTeacher]:
    """What becomes of a walk under a teacher that says these things."""

    def says(text: str) -> str | None:
        kinds = {"contradict the claim": contradiction, "List every answer": answers, "a right answer": fits, "Does the passage": stated}
        return next((said for words, said in kinds.items() if words in text), propose or json.dumps(GOOD))

    teacher = ScriptedTeacher(says)
    seeder = SeedGenerator(teacher, PassageSearch(LINKED), SearchIndex(PAGES), SeedsConfig())
    return seeder.make([WALK], 3, stored), teacher


def test_a_question_that_nothing_speaks_against_is_kept_with_what_is_not_proven() -> None:
    result, teacher = made()
    (task,) = result.tasks
    assert not result.failures and result.survived == dict.fromkeys((ASKED, *CHECKS), 1)
    assert (task.question, task.answers, task.formula) == ("Who made Night Boat?", ("the mason",), (("C@Night Boat", "made by", "?"),))
    assert task.provenance["projections"][0]["document"] == "films/boat.md" and task.provenance["seeded_by"] == teacher.name
    assert task.proofs["unproven"] == ["answers", "redundant"] and task.proofs["shortcuts"] == [0]
    assert [task.proofs[name] for name in ("stated", "uncontradicted", "only_answer")] == [True] * 3
    assert made()[0].tasks == result.tasks, "the same seed, the same question"
    assert made(stored=frozenset({task.key}))[0].failures[0].kind == "double"


def answer(text: str, quote: str, passage: int = 1) -> dict[str, Any]:
    return {"answer": text, "passage": passage, "quote": quote}


OWN = answer("the mason", "made by the mason")
OTHER = answer("Carl Reed", "She saw Carl Reed", 2)


@pytest.mark.parametrize(
    ("said", "check", "kind"),
    [
        ({"stated": "No."}, "stated", "not_stated"),
        ({"contradiction": '{"contradicted": true, "passage": 1, "quote": "Night Boat"}'}, "uncontradicted", "contradicted"),
        ({"answers": json.dumps([OTHER])}, "only_answer", "not_answered"),
        ({"answers": json.dumps([OWN, OTHER]), "fits": "Yes"}, "only_answer", "second_answer"),
    ],
)
def test_what_speaks_against_a_question_drops_it(said: dict[str, str], check: str, kind: str) -> None:
    result, _ = made(**said)
    place = CHECKS.index(check)
    assert not result.tasks and [failure.kind for failure in result.failures] == [kind]
    assert [result.survived.get(name) for name in CHECKS] == [1] * place + [0] * (len(CHECKS) - place)
    assert result.failures[0].item["proposal"]["question"] == GOOD["question"]


@pytest.mark.parametrize(
    ("said", "open_"),
    [
        ({"stated": "Perhaps."}, "stated"),
        ({"contradiction": '{"contradicted": true, "passage": 1, "quote": "as all know"}'}, "uncontradicted"),
        ({"answers": json.dumps([OWN] * 11)}, "only_answer"),
        ({"answers": json.dumps([OWN, OTHER]), "fits": "Perhaps."}, "only_answer"),
    ],
)
def test_what_is_not_clear_is_marked(said: dict[str, str | None], open_: str) -> None:
    result, _ = made(**said)
    (task,) = result.tasks
    assert open_ in task.proofs["unproven"] and task.proofs[open_] is None
