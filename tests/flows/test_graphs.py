"""`flywheel graph` over a graph of files, and tasks and trajectories in `flywheel show`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.config import load_config
from flows.graphs import SUITES, TRAINING, graph_figures
from synth.questions.decontamination import HELD_OUT, TRAIN, split_of
from tests.flows.homes import ended, flywheel
from tests.flows.wheel_records import HOSTILE
from warehouse import Call, Lake, Outcome, StopReason, Task, Turn
from warehouse.errors import RequestError

FILMS = {f"Film {number}": f"Star {number // 2}" for number in range(40)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rows = [f"{film},star,{star},{film}" for film, star in FILMS.items()]
    rows += [f"{film},year,19{n + 10},{film}" for n, film in enumerate(FILMS)]
    (folder / "facts.csv").write_text("\n".join(["subject,relation,object,documents", *rows, "\x1b[2JEvil,star,Star 0,"]))
    pages = [{"id": film, "title": film, "text": f"{star} stars in {film}."} for film, star in FILMS.items()]
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, pages)))
    return folder


def test_facts_between_training_and_suites_belong_to_neither(corpus: Path) -> None:
    (figures,) = graph_figures(load_config("quickstart", ["corpus.kind=files", f"corpus.path={corpus}"]))
    sides = {film: (split_of(film, 0.2), split_of(star, 0.2)) for film, star in FILMS.items()}
    years = {film: (split_of(film, 0.2), split_of(f"19{n + 10}", 0.2)) for n, film in enumerate(FILMS)}
    pairs = [*sides.values(), *years.values()]
    assert figures.reach[TRAINING].facts == pairs.count((TRAIN, TRAIN))
    assert figures.reach[SUITES].facts == pairs.count((HELD_OUT, HELD_OUT))
    assert pairs.count((TRAIN, HELD_OUT)) + pairs.count((HELD_OUT, TRAIN)) > 0
    assert figures.topology.stated == 80 and figures.topology.facts == 81


SEED = Task("seed", "search", "Who stars?", ("Ann",), (("C@Night Boat", "star", "?"),), provenance={"path": ["Night Boat", "Ann"]})
GROWN = Task(
    "grown", "search", "Who stars in the film by Cy?", ("Ann",), (("V@x0", "star", "?"), ("V@x0", "director", "C@Cy")), layers=2, hops=2,
    provenance={"expanded_from": "seed", "path": ["Night Boat", "Ann", HOSTILE]}, proofs={"redundant": [], "unproven": ["answers"]},
)  # fmt: skip


def test_a_task_is_shown_with_its_formula_and_what_it_grew_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with Lake(tmp_path) as lake:
        lake.add([SEED, GROWN, ended("t", "grown", Outcome.FAILURE, stage="rl")])
    lines = [line.rstrip() for line in flywheel("show", "grown", "--home", tmp_path).splitlines()]
    assert "    └── ←star— V@x0  +" in lines and "        └── —director→ Cy  +" in lines
    assert "── expanded from seed" in lines and "    └── ←star— Night Boat" in lines
    assert "proof     redundant: none" in lines and "proof     unproven: answers" in lines
    assert "attempts  p, rl: failure 1" in lines
    told = json.loads(flywheel("show", "grown", "--home", tmp_path, "--json"))
    assert told["made_from"] == ["seed"] and len(told["graph"]["edges"]) == 2
    with pytest.raises(RequestError, match="'none'"):
        flywheel("show", "none", "--home", tmp_path)


def test_tasks_that_name_each_other_are_shown_once(tmp_path: Path) -> None:
    one, other = (Task(key, "search", "?", ("x",), provenance={"expanded_from": origin}) for key, origin in (("a", "b"), ("b", "a")))
    with Lake(tmp_path) as lake:
        lake.add([one, other])
    told = json.loads(flywheel("show", "a", "--home", tmp_path, "--json"))
    assert told["made_from"] == ["b"] and told["graph"] is None


CALLS = (
    Call("search", "Amber Stone", "ok", "a page", 0.25, 2, 0.5, {"documents": 3}),
    Call("lookup", '{"query": "[bold]x"}', "fault", "gone", None),
)


@pytest.mark.slow
def test_a_trajectory_is_shown_with_its_calls_and_what_they_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    turn = Turn(0, (1, 2), (-0.5, -1.0), "two calls", "search", "Amber Stone", (3,), "a page", 0.5, "ok", 1.0, 4, (4, 5), CALLS)
    run = replace(ended("t", "k", Outcome.FAILURE), turns=(turn,), stop_reason=StopReason.MAX_SECONDS)
    with Lake(tmp_path) as lake:
        lake.add([Task("k", "search", "Where?", ("x",)), run])
    shown = flywheel("show", "t", "--home", tmp_path, "--tokens")
    assert "accepted  x" in shown and "two calls" in shown and "stopped by max_seconds" in shown
    assert "call         search Amber Stone  [ok · 250 ms · 2 retries · reward 0.5 · documents 3]" in shown
    assert 'call         lookup {"query": "[bold]x"}  [fault]' in shown
    assert "observation  a page  [masked, 1 tokens]" in shown
