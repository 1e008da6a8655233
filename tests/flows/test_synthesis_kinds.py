"""Synthesis of a turn on small worlds: each kind alone, the same result twice, batches, graphs that give too little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.flows.homes import ended, home_at, make
from warehouse import Outcome, Task, Turn
from warehouse.errors import RequestError

pytestmark = pytest.mark.slow

FEW = ("corpus.train.entities=150", "corpus.held_out.entities=150")


def test_questions_alone_are_made_in_batches_and_none_twice(tmp_path: Path) -> None:
    with home_at(tmp_path, "synth.batch=7") as context:
        assert make(context, "webshaper")["tasks.train"] == 40
        tasks, lake = context.lake.tasks(), context.lake
        assert {task.split for task in tasks} == {"train"} and not lake.examples()
        assert len({document.source for document in lake.documents()}) == 1, "the suites' world is not needed"
        assert len({task.formula for task in tasks}) == 40
        assert [sum(task.hops == hops for task in tasks) for hops in (1, 2)] == [20, 20]
        assert len([metric for metric in lake.metrics() if metric.name.startswith("made.questions")]) == 6


def test_higher_order_text_from_imported_runs_alone(tmp_path: Path) -> None:
    with home_at(tmp_path, "synth.has_count=5", *FEW) as context:
        for number in range(4):
            turn = Turn(0, (), (), "", "search", f"place {number}", (), "seen", None, "ok", 0.0, 0)
            last = replace(turn, index=1, tool="answer", arguments=f"city {number}", observation="")
            run = replace(ended(f"r{number}", f"q{number}", Outcome.SUCCESS, "other", "import"), turns=(turn, last))
            context.lake.add([Task(f"q{number}", "search", f"where is place {number}?", (f"city {number}",), split="other"), run])
        assert make(context, "has")["examples.has"] == 4
        assert {source for example in context.lake.examples() for source in example.sources} == {"r0", "r1", "r2", "r3"}


def films(folder: Path, count: int = 60, persons: int = 7) -> list[str]:
    """Films that lead nowhere, so that there are no two hops; returns the settings that read them."""
    folder.mkdir()
    rows = [f"Film {n},director,Person {n % persons},d{n}\nFilm {n},city,Place {n % 5},d{n}\n" for n in range(count)]
    (folder / "facts.csv").write_text("subject,relation,object,documents\n" + "".join(rows))
    texts = [f"Film {n} director Person {n % persons}. Film {n} city Place {n % 5}." for n in range(count)]
    lines = [f'{{"id": "d{n}", "title": "Film {n}", "text": "{text}"}}\n' for n, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("".join(lines))
    return ["corpus.kind=files", f"corpus.path={folder}", "corpus.train={}", "corpus.held_out={}"]


def test_a_question_that_meets_an_evaluation_set_is_replaced_by_another(tmp_path: Path) -> None:
    seen = tmp_path / "seen.jsonl"
    overrides = [*films(tmp_path / "data"), 'synth.webshaper.counts={"1":20}']
    with home_at(tmp_path / "clean", *overrides) as context:
        make(context, "webshaper")
        known = [task.question for task in context.lake.tasks()][:5]
    seen.write_text("".join(f'{{"question": "{question}"}}\n' for question in known))
    with home_at(tmp_path / "against", *overrides, f'synth.decontamination.against={{"seen":"{seen}"}}') as context:
        assert make(context, "webshaper")["tasks.train"] == 20
        assert not {task.question for task in context.lake.tasks()} & set(known)
        removed = context.lake.failures("decontamination")
        assert {failure.kind for failure in removed} == {"same_question"} and len(removed) == 5


def test_the_same_configuration_gives_the_same_tasks_and_examples(tmp_path: Path) -> None:
    found = []
    counts = ("synth.fas.reasoning={1=10}", "synth.webshaper.counts={1=8, 2=4}", "evaluation.suites.held_out.counts={1=6}")
    for name in ("a", "b"):
        with home_at(tmp_path / name, *FEW, *counts) as context:
            assert make(context)["tasks.held_out"] == 6
            found.append(({task.key: task.digest for task in context.lake.tasks()}, [each.id for each in context.lake.examples()]))
    assert found[0] == found[1]


def test_a_graph_that_gives_no_task_is_refused_and_the_reasons_are_kept(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text("subject,relation,object\nParis,country,France\n")
    (tmp_path / "documents.jsonl").write_text('{"id": "d1", "title": "Oslo", "text": "Oslo is far away."}\n')
    own = ("corpus.kind=files", f"corpus.path={tmp_path}", "corpus.train={}", "corpus.held_out={}")
    with home_at(tmp_path / "home", *own) as context:
        with pytest.raises(RequestError, match=r"train, held_out, validation: synth\.webshaper\.counts"):
            make(context)
        assert any(failure.kind == "shortfall" for failure in context.lake.failures("synth"))
