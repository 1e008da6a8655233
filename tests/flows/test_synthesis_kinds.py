"""One kind of synthesis and nothing else; batches beyond the first; questions that meet a suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.pipeline import run_attempt
from flows.plan import SynthesisKind
from flows.stages.synthesis.stage import synthesise
from warehouse import Lake, Outcome, StopReason, Task, Trajectory, Turn
from warehouse.errors import RequestError

OUTCOME = (Outcome.SUCCESS, 1.0, 0, datetime(2026, 1, 1, tzinfo=UTC), 0.0)
"""Outcome, reward, seed, time of start and duration."""

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"


@contextmanager
def shop_at(home: Path, *overrides: str) -> Iterator[RunContext]:
    with Lake(home) as lake:
        yield RunContext(Home(home), load_config(str(SMALL), overrides), lake)


def make(context: RunContext, kind: SynthesisKind) -> dict[str, Any]:
    return run_attempt(context.lake, f"t1-synth-{kind}", "synth", 1, {}, lambda run: synthesise(context, run, 1, kind))[1]


@pytest.mark.slow
def test_questions_and_nothing_else(tmp_path: Path) -> None:
    with shop_at(tmp_path) as context:
        assert make(context, "webshaper")["tasks.train"] == 40
        assert {task.split for task in context.lake.tasks()} == {"train"}
        assert not context.lake.examples()
        assert len({document.source for document in context.lake.documents()}) == 1, "the suites' world is not needed"


@pytest.mark.slow
def test_training_questions_are_grown_by_layers_where_a_profile_says_nothing_else(tmp_path: Path) -> None:
    profile = tmp_path / "own.toml"
    profile.write_text(
        "[corpus]\ntrain = { entities = 300 }\nheld_out = { entities = 100 }\n[synth.webshaper]\ncounts = { 1 = 5, 2 = 5 }\n"
    )
    config = load_config(str(profile))
    others = (config.synth.demonstration_questions, *config.evaluation.all_suites.values())
    assert {each.structure for each in others} == {"paths"}
    with Lake(tmp_path / "home") as lake:
        assert make(RunContext(Home(tmp_path / "home"), config, lake), "webshaper")["tasks.train"] == 10
        tasks = lake.tasks(split="train")
    assert {task.provenance["shape"] for task in tasks} == {"layerwise"} and {task.layers for task in tasks} == {1, 2}
    assert all(task.layers == 1 or task.proofs["shortcuts"] == [] for task in tasks)


@pytest.mark.long
@pytest.mark.slow
def test_a_graph_that_gives_nothing_so_deep_is_told_in_the_unit_that_was_asked(tmp_path: Path) -> None:
    data, deep = films(tmp_path / "data"), 'synth.webshaper.counts={"6":3}'
    for structure, unit in (("layerwise", "6 layers"), ("paths", "6 hops")):
        said = rf"synth\.webshaper\.counts asks for up to {unit}; ask for fewer"
        settings = (*data, deep, f"synth.webshaper.structure={structure}")
        with shop_at(tmp_path / structure, *settings) as context, pytest.raises(RequestError, match=said):
            make(context, "webshaper")


@pytest.mark.slow
def test_first_order_text_and_nothing_else(tmp_path: Path) -> None:
    with shop_at(tmp_path) as context:
        make(context, "fas")
        assert {example.kind for example in context.lake.examples()} == {"fas_plan", "fas_reason"}
        assert not context.lake.tasks()


@pytest.mark.slow
def test_higher_order_text_needs_trajectories(tmp_path: Path) -> None:
    with shop_at(tmp_path) as context, pytest.raises(RequestError, match="flywheel import"):
        make(context, "has")


def test_higher_order_text_of_no_trajectory_is_refused(tmp_path: Path) -> None:
    with shop_at(tmp_path, "synth.has_count=0") as context, pytest.raises(RequestError, match=r"synth\.has_count is 0"):
        make(context, "has")


@pytest.mark.slow
def test_higher_order_text_from_imported_runs_alone(tmp_path: Path) -> None:
    with shop_at(tmp_path, "synth.has_count=5") as context:
        for number in range(4):
            turn = Turn(0, (), (), "", "search", f"place {number}", (), "seen", None, "ok", 0.0, 0)
            last = replace(turn, index=1, tool="answer", arguments=f"city {number}", observation="")
            run = Trajectory(f"r{number}", f"q{number}", "other", "import", 0, (), (turn, last), StopReason.ANSWERED, *OUTCOME)
            context.lake.add([Task(f"q{number}", "search", f"where is place {number}?", (f"city {number}",), split="other"), run])
        assert make(context, "has")["examples.has"] == 4
        assert {source for example in context.lake.examples() for source in example.sources} == {"r0", "r1", "r2", "r3"}


@pytest.mark.slow
def test_small_batches_make_as_many_questions_and_none_twice(tmp_path: Path) -> None:
    with shop_at(tmp_path, "synth.batch=7") as context:
        assert make(context, "webshaper")["tasks.train"] == 40
        tasks = context.lake.tasks()
        assert len({task.formula for task in tasks}) == 40
        assert [sum(task.hops == hops for task in tasks) for hops in (1, 2)] == [20, 20]
        assert len([metric for metric in context.lake.metrics() if metric.name.startswith("made.questions")]) == 6


def films(folder: Path, count: int = 60, persons: int = 7) -> list[str]:
    """Films that lead nowhere, so that there are no two hops; returns the settings that read them."""
    folder.mkdir()
    rows = [f"Film {n},director,Person {n % persons},d{n}\nFilm {n},city,Place {n % 5},d{n}\n" for n in range(count)]
    (folder / "facts.csv").write_text("subject,relation,object,documents\n" + "".join(rows))
    texts = [f"Film {n} director Person {n % persons}. Film {n} city Place {n % 5}." for n in range(count)]
    lines = [f'{{"id": "d{n}", "title": "Film {n}", "text": "{text}"}}\n' for n, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("".join(lines))
    return ["corpus.kind=files", f"corpus.path={folder}", "corpus.train={}", "corpus.held_out={}"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("batch", [50_000, 4])
def test_so_many_questions_in_all_where_the_graph_is_short_of_a_depth(tmp_path: Path, batch: int) -> None:
    overrides = [*films(tmp_path / "data"), 'synth.webshaper.counts={"1":10,"2":10}', "synth.webshaper.count=30", f"synth.batch={batch}"]
    with shop_at(tmp_path / "home", *overrides) as context:
        assert make(context, "webshaper")["tasks.train"] == 30
        assert {task.hops for task in context.lake.tasks()} == {1}
        assert any(failure.kind == "shortfall" for failure in context.lake.failures("synth"))


@pytest.mark.slow
def test_a_suite_that_the_graph_cannot_fill_is_smaller_and_says_which_key_asks_for_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [*films(tmp_path / "data", 300, 300), 'wheel.stages=["rl"]', "evaluation.gate={}"]
    with shop_at(tmp_path / "home", *overrides) as context, caplog.at_level("WARNING", "flywheel"):
        figures = make(context, "all")
        short = [failure.reason for failure in context.lake.failures("synth") if failure.kind == "shortfall"]
    assert 0 < figures["tasks.held_out"] < 40
    warning = f"evaluation.suites.held_out.counts asks for 40 questions, and the graph gives {figures['tasks.held_out']}"
    assert any(warning in message for message in caplog.messages)
    assert any("evaluation.suites.held_out.counts asks for them" in reason for reason in short)
    assert any("synth.webshaper.counts asks for them" in reason for reason in short)


@pytest.mark.slow
def test_a_question_that_meets_an_evaluation_set_is_replaced_by_another(tmp_path: Path) -> None:
    seen = tmp_path / "seen.jsonl"
    overrides = [*films(tmp_path / "data"), 'synth.webshaper.counts={"1":20}']
    with shop_at(tmp_path / "clean", *overrides) as context:
        make(context, "webshaper")
        known = [task.question for task in context.lake.tasks()][:5]
    seen.write_text("".join(f'{{"question": "{question}"}}\n' for question in known))
    with shop_at(tmp_path / "against", *overrides, f'synth.decontamination.against={{"seen":"{seen}"}}') as context:
        assert make(context, "webshaper")["tasks.train"] == 20
        assert not {task.question for task in context.lake.tasks()} & set(known)
        removed = context.lake.failures("decontamination")
        assert {failure.kind for failure in removed} == {"same_question"} and len(removed) == 5
