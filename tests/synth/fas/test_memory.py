"""The memory: filled from facts, passages and what tools brought; slices whose entities belong together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from synth.corpora.passages import NameFinder
from synth.fas.memory import Memory, Origin, statements_brought, statements_in
from warehouse.records import Call, Document, StopReason, Trajectory, Turn

DOCUMENTS = [
    Document("d1", "Amber Stone", "Amber Stone is an engineer. She works for Blue River since 1994. " + "She likes tea. " * 30, "notes"),
    Document("d2", "Blue River (company)", "The company is based in Green Lake. It was founded in 1901 and sold in 1950.", "notes"),
    Document("d3", "Green Lake", "A town.", "notes"),
]
FINDER = NameFinder(document.title for document in DOCUMENTS)


def run(observation: str, outcome: str | None = "ok") -> Trajectory:
    turn = Turn(0, (), (), "", "search", "Amber", (), f"shown: {observation}", None, outcome, 0.0, 0)
    turn = replace(turn, calls=(Call("search", "Amber", outcome, observation),))
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return Trajectory("t1", "k", "p", "rl", 4, (), (turn,), StopReason.ANSWERED, None, None, 0, time, 1.0)


def test_passages_stand_under_their_title_and_under_every_name_that_they_hold() -> None:
    memory = Memory(statements_in(DOCUMENTS, FINDER))
    first, *rest = memory.about("Amber Stone")
    assert first.text.startswith("Amber Stone is an engineer. She works for Blue River since 1994.") and len(first.text) <= 300
    assert (first.source, first.time, first.origin, first.relation) == ("d1", "1994", Origin.PASSAGE, "")
    assert rest and all(statement.source == "d1" for statement in rest)
    assert [statement.source for statement in memory.about("Blue River (company)")] == ["d1", "d2"]
    assert [statement.source for statement in memory.about("Green Lake")] == ["d2", "d3"]
    assert {statement.time for statement in memory.about("Green Lake")} == {None}, "two years, or none, are no time"


def test_what_tools_brought_stands_under_known_names_and_under_what_looks_like_one() -> None:
    memory = Memory(statements_brought([run("Amber Stone met Ann of the White Hill in Green Lake, said Ann.")], FINDER))
    assert list(memory) == ["Amber Stone", "Green Lake", "Ann of the White Hill"]
    assert {statement.source for statement in memory.about("Green Lake")} == {"t1/0"}
    assert {statement.origin for statement in memory.about("Green Lake")} == {Origin.RESULT}


@pytest.mark.parametrize("outcome", ["timeout", "not_run", "unparsable"])
def test_what_a_tool_did_not_bring_is_not_remembered(outcome: str) -> None:
    assert not Memory(statements_brought([run("Amber Stone broke.", outcome)], FINDER))
