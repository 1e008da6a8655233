"""Wordings of a corpus of one's own: read with it, refused elsewhere, and found out before anything starts where they are broken."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flows.config import load_config
from flows.stages.synthesis.sources import read_sources
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.wording import Phrasing
from synth.worlds.schema import RELATIONS
from synth.worlds.world import WorldConfig, generate_world
from tests.flows.test_synthesis_kinds import make, shop_at
from tests.warehouse.corpora.test_wordings import GOOD, written

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


@pytest.mark.slow
def test_nothing_that_is_made_of_a_users_facts_has_words_of_a_generated_world(tmp_path: Path) -> None:
    """Questions, plans, reasoning: over the very facts and documents of a generated world, brought as files."""
    world = generate_world(WorldConfig(entities=300), "train", 0)
    rows = [{"subject": fact.subject, "relation": fact.relation, "object": fact.object} for fact in world.facts]
    texts = [{"id": document.id, "title": document.title, "text": document.text} for document in world.documents]
    for name, lines in (("facts", rows), ("documents", texts)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    own = ["corpus.kind=files", f"corpus.path={tmp_path}", "corpus.train={}", "corpus.held_out={}"]
    foreign = {relation.asked for relation in RELATIONS}
    with shop_at(tmp_path / "home", *own) as context:
        for kind in ("webshaper", "fas"):
            make(context, kind)
        texts = [task.question for task in context.lake.tasks()]
        texts += [part.text for example in context.lake.examples() for part in example.parts]
    assert len(texts) > 100
    assert not [text for text in texts if foreign & set(re.findall(r"[a-z]+", text))]
