"""Extraction as a command: a folder of pages and a real HTTP server in, a corpus that questions are built from out, paid for once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.data.extraction import extract
from flows.stages.synthesis.sources import read_files
from tests.flows.test_expansions import teacher_at
from tests.synth.scripted import LABELLED, verdict
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake

STATED = re.compile(r"(?P<subject>[A-Z]\w+) (?P<relation>lies in|borders) (?P<object>[A-Z]\w+)")


def reader(body: dict[str, Any]) -> str:
    """States what the passage states, one thing that it does not, and says yes to whatever it is asked again."""
    text = body["messages"][-1]["content"]
    if body["messages"][0]["role"] != "system":
        return LABELLED.get(text, verdict("yes"))
    found = [{**match.groupdict(), "quote": match[0], "subject_type": "place", "object_type": "place"} for match in STATED.finditer(text)]
    return json.dumps([*found, {**found[0], "object": "Atlantis"}])


@pytest.mark.slow
def test_pages_become_a_graph_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "paris.md").write_text("# Paris\n\nParis lies in France.\n")
    (notes / "france.md").write_text("# France\n\nFrance borders Spain. France borders Italy.\n")
    with MisbehavingServer(answer=reader) as server:
        config = load_config("quickstart", teacher_at(server)).synth
        figures = extract(notes, tmp_path / "graph", config)
        asked = len(server.bodies)
        assert extract(notes, tmp_path / "graph", config) == figures
        assert len(server.bodies) == asked, "nothing is paid for twice"
    assert figures == {"documents": 2, "facts": 3, "dropped": 2, "reasons": {"object_not_named": 2}}
    corpus = read_files(tmp_path / "graph")
    assert {(fact.subject, fact.relation, fact.object, fact.documents) for fact in corpus.facts} == {
        ("Paris", "lies_in", "France", ("paris.md",)),
        ("France", "borders", "Spain", ("france.md",)),
        ("France", "borders", "Italy", ("france.md",)),
    }
    with Lake(tmp_path / "graph", read_only=True) as lake:
        assert [failure.kind for failure in lake.failures("extraction")] == ["object_not_named"] * 2
