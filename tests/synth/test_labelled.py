"""What Qwen2.5-Coder-1.5B wrote about films, labelled by hand: how many right and wrong ones the checks keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.corpora.grounding import TypedFact, ground
from synth.corpora.outlines import QuotedFact
from synth.corpora.passages import Passage, Walk
from synth.corpora.seed_proposals import Seed, objection_to_question
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.rewording import check
from synth.questions.wording import Phrasing
from warehouse.corpora.corpus import Corpus
from warehouse.corpora.films import read_films
from warehouse.errors import RequestError
from warehouse.public_data.catalogue import locate
from warehouse.records import Task

pytestmark = pytest.mark.slow
FACTS, REWORDINGS, QUESTIONS = (
    [json.loads(line) for line in (Path(__file__).parent / name).read_text().splitlines()]
    for name in ("corpora/labelled_facts.jsonl", "questions/labelled_rewordings.jsonl", "corpora/labelled_questions.jsonl")
)


@pytest.fixture(scope="module")
def films() -> Corpus:
    """The films with summaries of up to 300 characters."""
    try:
        return read_films(locate("films"), 300)
    except RequestError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("sample", "right_lost", "wrong_kept"), [("tuned", 0.1, 0.25), ("held_out", 0.1, 0.3)])
def test_right_facts_are_kept_and_wrong_ones_dropped(films: Corpus, sample: str, right_lost: float, wrong_kept: float) -> None:
    """The check was written with the facts of the sample `tuned` in view; those of `held_out` were labelled afterwards."""
    texts = {document.title: document.text for document in films.documents}

    def kept(fact: dict[str, Any]) -> bool:
        return isinstance(ground(TypedFact.model_validate(fact), fact["title"], texts[fact["title"]]), TypedFact)

    chosen = [fact for fact in FACTS if fact["sample"] == sample]
    right, wrong = ([kept(fact) for fact in chosen if fact["right"] is label] for label in (True, False))
    assert right.count(False) / len(right) <= right_lost
    assert wrong.count(True) / len(wrong) <= wrong_kept


def test_right_rewordings_are_kept_and_wrong_ones_dropped(films: Corpus) -> None:
    graph = KnowledgeGraph.of(films)
    phrasing = Phrasing.of(graph)

    def kept(row: dict[str, Any]) -> bool:
        task = Task("k", "search", row["question"], tuple(row["answers"]), tuple((s, r, o) for s, r, o in row["formula"]))
        return not check(row["rewording"], task, (), phrasing, graph.types.get(task.answers[0], ""))

    right, wrong = ([kept(row) for row in REWORDINGS if row["right"] is label] for label in (True, False))
    assert right.count(False) <= len(right) // 10
    assert wrong.count(True) <= len(wrong) // 10


def test_right_wordings_of_seeds_are_kept_and_wrong_ones_dropped() -> None:
    """The check was written with these questions in view."""
    passage = Passage("film#0", "film", "", "")

    def kept(row: dict[str, Any]) -> bool:
        facts = tuple(QuotedFact(TypedFact.model_validate(fact), passage) for fact in row["facts"])
        return objection_to_question(Seed(facts, row["answer"], tuple(row["unknowns"]), row["question"], walk=Walk((passage,), ()))) is None

    right, wrong = ([kept(row) for row in QUESTIONS if row["right"] is label] for label in (True, False))
    assert right.count(False) <= len(right) // 10
    assert wrong.count(True) <= len(wrong) // 4
