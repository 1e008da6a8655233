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
from synth.config import SynthConfig
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


def settings(url: str) -> SynthConfig:
    options = ["synth.teacher.kind=openai", "synth.teacher.model=m", f"synth.teacher.base_url={url}"]
    return load_config("quickstart", options).synth


def pages(folder: Path) -> Path:
    folder.mkdir()
    (folder / "paris.md").write_text("# Paris\n\nParis lies in France.\n")
    (folder / "france.md").write_text("# France\n\nFrance borders Spain. France borders Italy.\n")
    return folder


@pytest.mark.slow
def test_pages_become_a_graph_once(tmp_path: Path) -> None:
    with MisbehavingServer(answer=reader) as server:
        figures = extract(pages(tmp_path / "notes"), tmp_path / "graph", settings(server.url))
        asked = len(server.bodies)
        assert extract(tmp_path / "notes", tmp_path / "graph", settings(server.url)) == figures
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
