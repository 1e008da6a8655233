"""Facts that Qwen2.5-Coder-1.5B stated of film summaries, labelled by hand: how many right and wrong ones the grounding check keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.corpora.grounding import TypedFact, ground
from tests.synth.films import films

FACTS = [json.loads(line) for line in Path(__file__).with_name("labelled_facts.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "right_lost", "wrong_kept"), [("tuned", 0.1, 0.25), ("held_out", 0.1, 0.3)])
def test_right_facts_are_kept_and_wrong_ones_dropped(sample: str, right_lost: float, wrong_kept: float) -> None:
    """The check was written with the facts of the sample `tuned` in view; those of `held_out` were labelled afterwards."""
    texts = {document.title: document.text for document in films().documents}

    def kept(fact: dict[str, Any]) -> bool:
        statement = TypedFact.model_validate(fact)
        return isinstance(ground(statement, fact["title"], texts[fact["title"]]), TypedFact)

    chosen = [fact for fact in FACTS if fact["sample"] == sample]
    right, wrong = ([kept(fact) for fact in chosen if fact["right"] is label] for label in (True, False))
    assert right.count(False) / len(right) <= right_lost
    assert wrong.count(True) / len(wrong) <= wrong_kept
