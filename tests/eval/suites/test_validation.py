"""Proof of task sets: sound ones are proven, and each way of being unsound is found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eval.graders.verifiers import GRADERS, Grader
from eval.suites.validation import Subject, Tally, TraitState, Validation, grading, label_quality, size, validate
from tests.real_data import DATA, needs

GSM8K = DATA / "math_gsm8k" / "test.jsonl"
LAKES = [Subject("1", ("Green Lake", "GL"), question="Which lake?"), Subject("2", ("Blue River",), question="Which river?")]


@pytest.mark.parametrize(
    ("kind", "golds"),
    [
        ("qa_em", [("Green Lake", "GL"), ("Blue River",)]),
        ("qa_f1", [("Green Lake",), ("Blue River",)]),
        ("set", [("red", "blue"), ("one", "two", "three")]),
        ("gsm8k", [("so\n#### 18",), ("#### -1,234",)]),
        ("number", [("5 km",), ("1/2",)]),
        ("date", [("20 July 1969",), ("44 BC",)]),
    ],
)
def test_a_sound_set_is_proven(kind: str, golds: list[tuple[str, ...]]) -> None:
    found = validate(GRADERS[kind], [Subject(str(n), gold, question="What is it?") for n, gold in enumerate(golds)])
    assert found.proven, found
    assert {"empty", "denied", "choice", "list", "near miss", "another row's", "second answer's tags"} <= set(found.negatives)


def test_a_verifier_that_is_fooled_is_found() -> None:
    def lenient(answer: Any, golds: Any, options: Any) -> tuple[float, bool]:
        return 1.0, any(gold in answer for gold in golds)

    found = validate(Grader("lenient", "1", lenient), LAKES)
    assert not found.proven
    assert found.gold.mistaken == 0
    assert {sort for sort, tally in found.negatives.items() if tally.mistaken} == {"denied", "choice", "list", "second answer's tags"}


def test_a_gold_that_fails_or_cannot_be_judged_is_found() -> None:
    found = validate(GRADERS["gsm8k"], [Subject("1", ("eighteen",)), Subject("2", ("#### 18",))])
    assert (found.unjudged.mistaken, found.proven) == (1, False)
    assert found.unjudged.examples[0].startswith("1: ")
    assert not validate(GRADERS["qa_em"], [Subject("1", ("Green Lake", " "))]).proven
    assert not validate(GRADERS["qa_em"], []).proven


@pytest.mark.long
@pytest.mark.slow
@needs("math_gsm8k")
def test_the_references_of_gsm8k_are_proven() -> None:
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    found = validate(GRADERS["gsm8k"], [Subject(str(n), (row["answer"],), question=row["question"]) for n, row in enumerate(rows)])
    assert (found.gold.tried, found.proven) == (1319, True)


GOOD = Validation(Tally(10, 0), {"empty": Tally(10, 0)}, Tally(10, 0))
WRONG_LABEL = Validation(Tally(10, 1, ["7: 'x'"]), {"empty": Tally(10, 0)}, Tally(10, 0))
FOOLED = Validation(Tally(10, 0), {"denied": Tally(10, 2, ["3: 'not x'"])}, Tally(10, 0))


def test_a_thousand_tasks_are_enough_and_fewer_say_what_they_show() -> None:
    assert size(1000).state is TraitState.KEPT
    assert size(164).state is TraitState.NOT_KEPT and "a difference of 15" in size(164).reason
    assert "no difference" in size(3).reason and "no difference" in size(0).reason


def test_labels_and_grading_are_told_apart() -> None:
    assert (label_quality(GOOD).state, grading(GOOD).state) == (TraitState.KEPT, TraitState.KEPT)
    assert (label_quality(WRONG_LABEL).state, grading(WRONG_LABEL).state) == (TraitState.NOT_KEPT, TraitState.KEPT)
    assert (label_quality(FOOLED).state, grading(FOOLED).state) == (TraitState.KEPT, TraitState.NOT_KEPT)
    assert "7: 'x'" in label_quality(WRONG_LABEL).reason and "denied" in grading(FOOLED).reason
    assert grading(Validation(Tally(10, 0), {}, Tally())).state is TraitState.NOT_KNOWN, "nothing wrong was tried"
    assert (label_quality(None).state, grading(None).state) == (TraitState.NOT_KNOWN, TraitState.NOT_KNOWN)
