"""Synthesis of a turn on a small world: what is stored, the same twice, and a graph that gives nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.stage import synthesise
from warehouse import Lake
from warehouse.errors import RequestError

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"


@pytest.mark.slow
def test_the_same_configuration_gives_the_same_tasks_and_examples(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        with Lake(tmp_path / name) as lake:
            context = RunContext(Home(tmp_path / name), load_config(str(SMALL)), lake)
            _, figures = run_attempt(lake, "t1-synth", "synth", 1, {}, lambda run, context=context: synthesise(context, run, 1))
            assert figures["tasks.held_out"] == 40
            found.append(({task.key: task.digest for task in lake.tasks()}, [example.id for example in lake.examples()]))
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_graph_that_gives_no_task_is_refused_and_the_reasons_are_kept(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text("subject,relation,object\nParis,country,France\n")
    (tmp_path / "documents.jsonl").write_text('{"id": "d1", "title": "Oslo", "text": "Oslo is far away."}\n')
    config = load_config(str(SMALL), ["corpus.kind=files", f"corpus.path={tmp_path}", "corpus.train={}", "corpus.held_out={}"])
    with Lake(tmp_path / "home") as lake:
        context = RunContext(Home(tmp_path / "home"), config, lake)
        said = r"no task for train, held_out, validation: synth\.webshaper\.counts asks for up to 2 hops; ask"
        with pytest.raises(RequestError, match=said):
            run_attempt(lake, "t1-synth", "synth", 1, {}, lambda run: synthesise(context, run, 1))
        assert any(failure.kind == "shortfall" for failure in lake.failures("synth"))
