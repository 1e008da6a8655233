"""Rewordings that Qwen2.5-Coder-1.5B wrote of questions about films, labelled by hand: how many right and wrong ones the checks keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.rewording import check
from synth.questions.wording import Phrasing
from tests.synth.films import films
from warehouse.records import Task

ROWS = [json.loads(line) for line in Path(__file__).with_name("labelled_rewordings.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_right_rewordings_are_kept_and_wrong_ones_dropped() -> None:
    graph = KnowledgeGraph.of(films())
    phrasing = Phrasing.of(graph)

    def kept(row: dict[str, Any]) -> bool:
        task = Task("k", "search", row["question"], tuple(row["answers"]), tuple((s, r, o) for s, r, o in row["formula"]))
        return not check(row["rewording"], task, (), phrasing, graph.types.get(task.answers[0], ""))

    right, wrong = ([kept(row) for row in ROWS if row["right"] is label] for label in (True, False))
    assert right.count(False) <= len(right) // 10
    assert wrong.count(True) <= len(wrong) // 10
