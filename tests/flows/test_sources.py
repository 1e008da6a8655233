"""A corpus of files: its rows, pages and wordings; a broken row is quarantined with its reason, and no other is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flows.config import load_config
from flows.stages.synthesis.examples import corpora
from flows.stages.synthesis.sources import Material, read_sources
from synth.config import CorpusConfig
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.wording import Phrasing
from synth.worlds.schema import RELATIONS
from synth.worlds.world import WorldConfig, generate_world
from tests.flows.homes import SMALL, home_at, make
from tests.warehouse.corpora.test_wordings import GOOD, written
from warehouse.errors import RequestError


def corpus(folder: Path) -> CorpusConfig:
    return CorpusConfig(kind="files", path=folder)


def test_a_broken_row_is_quarantined_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text("subject,relation,object,documents\nParis,country,France,d1\n,country,Spain,d2\n")
    (tmp_path / "documents.jsonl").write_text('{"id": "d1", "title": "Paris", "text": "Paris lies in France."}\n{"id": 3}\n')
    sources = read_sources(corpus(tmp_path), 0)
    assert [(fact.subject, fact.object) for fact in sources.train.facts] == [("Paris", "France")]
    assert len(sources.train.documents) == 1
    assert len(sources.train.failures) == 2
    assert sources.shared
    (batch,) = corpora(sources, everything=True)
    made, dropped = batch.make()
    assert len(made) == 2 and dropped == list(sources.train.failures), "what is told as dropped"


def test_a_folder_of_pages_and_a_table_of_facts_are_a_corpus(tmp_path: Path) -> None:
    mine, cities = tmp_path / "mine", tmp_path / "mine" / "cities"
    cities.mkdir(parents=True)
    (mine / "facts.csv").write_text("subject,relation,object\nParis,country,France\nLyon,country,France\nParis,river,Rhine\n")
    (cities / "paris.md").write_text("---\nauthor: me\n---\n# Paris\n\nParis lies in France.\n")
    (cities / "lyon.txt").write_text("It lies in France, too.\n")
    (cities / "empty.md").write_text("# Nothing\n")
    (cities / "bytes.md").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "secret.md").write_text("# Secret\n\nnot for this corpus")
    (mine / "link.md").symlink_to(tmp_path / "secret.md")
    train = read_sources(corpus(mine), 0).train
    said = {document.title: document.text for document in train.documents}
    assert said == {"lyon": "It lies in France, too.", "Paris": "Paris lies in France."}
    assert [fact.documents for fact in train.facts] == [("cities/paris.md",), ("cities/lyon.txt",), ()]
    assert sorted(failure.kind for failure in train.failures) == ["broken_page", "empty_page", "outside"]


def test_generated_worlds_share_no_name_and_no_document() -> None:
    config = CorpusConfig.model_validate({"train": {"entities": 200}, "held_out": {"entities": 150}})
    sources = read_sources(config, 3)
    assert not set(sources.train.types) & set(sources.held_out.types)
    assert not {d.text for d in sources.train.documents} & {d.text for d in sources.held_out.documents}
    assert sources == read_sources(config, 3)


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


def test_training_without_facts_sees_documents_alone_and_suites_the_graph(tmp_path: Path) -> None:
    none = ["corpus.facts=false", "synth.webshaper.counts={}", "synth.demonstration_questions.counts={}", 'sft.from=["imported"]']
    with home_at(tmp_path / "home", *corpus_in(tmp_path), *none) as context:
        material = Material(context, 1)
        assert [document.title for document in material.train_index.documents] == ["Night Boat"]
        assert not list(material.train.graph.entities) and "Night Boat" in material.held_out.graph.entities


@pytest.mark.parametrize(
    ("settings", "named"),
    [(["corpus.facts=false"], "facts = false is for films"), (["corpus.kind=countries", "corpus.facts=false"], "synth.seeds.count")],
)
def test_training_without_facts_where_they_are_needed_is_refused(settings: list[str], named: str, tmp_path: Path) -> None:
    own = [] if len(settings) == 1 else [f"corpus.path={tmp_path}", "corpus.train={}", "corpus.held_out={}"]
    with pytest.raises(RequestError, match=named):
        load_config(SMALL, [*own, *settings])


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
    with home_at(tmp_path / "home", *own) as context:
        make(context, "webshaper", run_id="t1-questions")
        make(context, "fas", run_id="t1-plans")
        texts = [task.question for task in context.lake.tasks()]
        texts += [part.text for example in context.lake.examples() for part in example.parts]
    assert len(texts) > 100
    assert not [text for text in texts if foreign & set(re.findall(r"[a-z]+", text))]
