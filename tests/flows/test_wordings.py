"""Wordings of a corpus of one's own: read with it, refused elsewhere, and found out before anything starts where they are broken."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from flows.config import load_config
from flows.preflight import preflight
from flows.stages.synthesis.context import read_sources
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.wording import Phrasing, word_question
from tests.warehouse.corpora.test_wordings import GOOD, written
from warehouse.corpora.files import read_wordings
from warehouse.errors import RequestError
from warehouse.records import Fact, Triple

SMALL = str(Path(__file__).parents[1] / "end_to_end" / "small.toml")


def corpus_in(folder: Path) -> list[str]:
    """The settings that name a corpus of files in `folder`."""
    (folder / "facts.csv").write_text("subject,relation,object\nNight Boat,release year,2001\n")
    (folder / "Night Boat.md").write_text("# Night Boat\n\nNight Boat is a film of 2001.\n")
    return ["corpus.kind=files", f"corpus.path={folder}", "corpus.train={}", "corpus.held_out={}"]


def test_a_corpus_of_files_speaks_as_its_wordings_say(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    config = load_config(SMALL, [*corpus_in(tmp_path), f"corpus.wordings={path}"])
    phrasing = Phrasing.of(KnowledgeGraph.of(read_sources(config.corpus, config.seed).train))
    assert phrasing.questions["release year"][0] == "In which year was {s} released?"
    assert phrasing.conditions == {"release year": "released in {o}"}


def test_without_a_file_the_names_of_relations_serve(tmp_path: Path) -> None:
    config = load_config(SMALL, corpus_in(tmp_path))
    phrasing = Phrasing.of(KnowledgeGraph.of(read_sources(config.corpus, config.seed).train))
    assert (phrasing.questions, phrasing.conditions) == ({}, {})


def test_wordings_are_for_files_alone(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="wordings are for files; generated worlds, films and countries have their own"):
        load_config(SMALL, [f"corpus.wordings={written(tmp_path, GOOD)}"])


def test_a_broken_file_is_found_out_before_anything_starts(tmp_path: Path) -> None:
    config = load_config(SMALL, [*corpus_in(tmp_path), f"corpus.wordings={tmp_path / 'missing.toml'}"])
    with pytest.raises(RequestError, match="there is no file of wordings"):
        preflight(config)


def test_the_documented_wordings_ask_what_the_page_says(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "synthesis.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    facts = [Fact("Night Boat", "release year", "2001"), Fact("Night Boat", "cast member", "Ann Lee")]
    phrasing = Phrasing.of(KnowledgeGraph(facts, wordings=read_wordings(written(tmp_path, block))))
    formulas: list[tuple[Triple, ...]] = [
        (("C@Night Boat", "release year", "?"),),
        (("V@f", "cast member", "C@Ann Lee"), ("V@f", "release year", "?")),
        (("V@f", "release year", "C@2001"), ("V@f", "cast member", "?")),
    ]
    for formula in formulas:
        assert f"«{word_question(formula, phrasing, 2, Random(0))}»" in " ".join(text.split())
