"""Decision records: where alternatives come from, how they are written, that the choice is uniform, and which action leads on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rl.renderers.tags import tagged_text
from synth.demonstrations.oracle import solution_of
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.has.decisions import describe, option
from synth.has.proposers import OthersProposer
from synth.has.records import ActionOracle, HasConfig, HasExamples, build_has
from synth.questions.paths import Retrieve
from tests.real_data import DATA, needs
from tests.synth.runs import run_of, turn_of
from warehouse.importers.fireact import read_fireact
from warehouse.importers.webdancer import read_webdancer
from warehouse.records import Image, Outcome, PartKind, Task, Trajectory

RUNS = DATA / "trajectories"

CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}
"""The value that chi-square passes by chance once in a thousand, by degrees of freedom."""


@pytest.fixture(scope="module")
def runs(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> list[Trajectory]:
    """The oracle's run on every task; every other one is called a failure."""
    return [run(graph, retrieve, task, number) for number, task in enumerate(tasks)]


Build = Callable[..., HasExamples]


@pytest.fixture(scope="module")
def build(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> Build:
    """Builds the records of runs on these tasks, with this configuration."""

    def built(runs: Sequence[Trajectory], seed: int = 1, proposers: Any = None, **config: Any) -> HasExamples:
        by_key = {task.key: task for task in tasks}
        return build_has(graph, runs, by_key, HasConfig.model_validate(config), seed, retrieve, proposers=proposers or {})

    return built


def run(graph: KnowledgeGraph, retrieve: Retrieve, task: Task, number: int) -> Trajectory:
    solution = solution_of(graph, task, retrieve)
    assert solution is not None
    calls = [("search", step.query, step.document.text, step.think) for step in solution.steps]
    calls.append(("answer", solution.answer, "", solution.think))
    turns = (turn_of(index, *call) for index, call in enumerate(calls))
    return run_of(f"t{number}", task.key, turns, Outcome.FAILURE if number % 2 else Outcome.SUCCESS)


def chi_square(counts: Iterable[int], places: int) -> float:
    """Pearson's statistic of `counts` against the uniform distribution over `places`."""
    found = list(counts)
    expected = sum(found) / places
    return sum((count - expected) ** 2 for count in found) / expected + (places - len(found)) * expected


@pytest.mark.parametrize("alternatives", [1, 4])
@pytest.mark.parametrize("proposer", ["oracle", "others"])
@pytest.mark.slow
def test_the_place_of_the_choice_is_uniform(
    tasks: list[Task], build: Build, runs: list[Trajectory], alternatives: int, proposer: str
) -> None:
    others = {"others": OthersProposer(runs, {task.key: task for task in tasks})}
    places: Counter[int] = Counter()
    for seed in range(3):
        examples, failures, _ = build(runs, seed, others, n_alternatives=alternatives, mixture={proposer: 1.0})
        assert failures == []
        places.update(int(number) for example in examples for number in re.findall(r"I will choose option (\d+)", example.text))
    assert sum(places.values()) == 3 * sum(len(run.turns) for run in runs) > 2_000
    assert set(places) == set(range(1, alternatives + 2))
    assert chi_square(places.values(), alternatives + 1) < CHI_SQUARE[alternatives]


def test_decision_records_show_options_choice_response_and_verdict(build: Build, runs: list[Trajectory]) -> None:
    examples, failures, _ = build(runs, n_alternatives=3)
    assert len(examples) == len(runs) and failures == []
    for trajectory, example in zip(runs, examples, strict=True):
        assert example.sources == (trajectory.id,)
        verdict = "Correct" if trajectory.outcome is Outcome.SUCCESS else "Incorrect"
        text = tagged_text(example.parts)
        assert text.endswith(f"</answer> My decision is {verdict}")
        steps = re.findall(r"<think> options: 1\. (.+?) 2\. (.+?) 3\. (.+?) 4\. (.+?) I will choose option (\d)</think><\w+> (.+?)</", text)
        assert len(steps) == len(trajectory.turns)
        for (*options, chosen, argument), turn in zip(steps, trajectory.turns, strict=True):
            assert len(set(options)) == 4
            assert options[int(chosen) - 1].endswith(f"{turn.tool} {turn.arguments}")
            assert argument == turn.arguments
            assert turn.observation in text


def test_unusable_trajectories_are_left_out_with_a_reason(build: Build, runs: list[Trajectory]) -> None:
    good = runs[0]
    unusable = [
        replace(good, outcome=Outcome.INVALID),
        replace(good, outcome=None),
        replace(good, turns=()),
        replace(good, task_key="gone"),
        replace(good, turns=(replace(good.turns[0], images=(Image("d", "image/png", 1, 1, b""),)), *good.turns[1:])),
    ]
    examples, failures, _ = build(unusable)
    assert examples == []
    assert [failure.kind for failure in failures] == ["has_invalid", "has_not_judged", "has_empty", "has_unknown_task", "has_of_images"]


def test_the_oracle_knows_which_action_leads_on(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], runs: list[Trajectory]
) -> None:
    oracle = ActionOracle(graph, retrieve)
    for task, run in list(zip(tasks, runs, strict=True))[::3]:
        for number, taken in enumerate(run.turns):
            at = oracle.progress(task, run.turns[:number])
            assert at is not None and at.read == number
            assert oracle.leads_on(at, describe(taken)) and describe(taken) == oracle.best(at)
            assert not oracle.leads_on(at, option("", ("answer", "nobody")))
            if number:
                assert not oracle.leads_on(at, describe(run.turns[number - 1]))
    assert oracle.progress(replace(tasks[0], formula=()), ()) is None


@pytest.mark.slow
def test_contrasts_name_the_one_action_that_leads_on(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], build: Build, runs: list[Trajectory]
) -> None:
    astray = [replace(run, id=f"{run.id}x", turns=(turn_of(0, "search", "nothing at all"), *run.turns[1:])) for run in runs]
    plain, *_ = build([*runs, *astray], n_alternatives=3)
    examples, failures, _ = build([*runs, *astray], n_alternatives=3, contrasts=2)
    assert failures == []
    assert [example for example in examples if example.kind == "has"] == plain
    contrasts = [example for example in examples if example.kind == "has_contrast"]
    assert len(contrasts) > 1_000
    oracle = ActionOracle(graph, retrieve)
    by_id = {run.id: (task, run) for ways in (runs, astray) for task, run in zip(tasks, ways, strict=True)}
    places: Counter[tuple[int, int]] = Counter()
    for contrast in contrasts:
        thought, call = [part for part in contrast.parts if part.learnt]
        listed, number = re.findall(r"options: (.*) Only option (\d+) leads on", thought.text)[0]
        options = re.split(r" ?\d\. ", listed)[1:]
        task, run = by_id[contrast.sources[0]]
        at = oracle.progress(task, run.turns[: sum(part.kind is PartKind.RESULT for part in contrast.parts)])
        assert at is not None
        assert [oracle.leads_on(at, read_option(text)) for text in options] == [
            place == int(number) for place in range(1, len(options) + 1)
        ]
        assert options[int(number) - 1].endswith(f"{call.tool or 'answer'} {call.text}")
        places[len(options), int(number)] += 1
    for width in {width for width, _ in places if sum(count for (w, _), count in places.items() if w == width) > 200}:
        assert chi_square([count for (w, _), count in places.items() if w == width], width) < CHI_SQUARE[width - 1]


def read_option(text: str) -> object:
    found = re.fullmatch(r"(?:(.*), )?(search|answer) (.*)", text)
    assert found is not None
    return option(found[1] or "", (found[2], found[3]))


@pytest.mark.slow
@needs("trajectories/webdancer", "trajectories/fireact")
@pytest.mark.parametrize(("unjudged", "made", "left_out"), [("drop", 965, 120), ("open", 1_085, 0)])
def test_the_released_runs_become_decisions_without_a_graph(unjudged: str, made: int, left_out: int) -> None:
    records = [*read_webdancer(RUNS / "webdancer").records, *read_fireact(RUNS / "fireact").records]
    runs = [record for record in records if isinstance(record, Trajectory)]
    tasks = {record.key: record for record in records if isinstance(record, Task)}
    config = HasConfig.model_validate({"n_alternatives": 3, "mixture": {"others": 1.0}, "unjudged": unjudged, "rendering": "listing"})
    examples, failures, _ = build_has(None, runs, tasks, config, 1, proposers={"others": OthersProposer(runs, tasks)})
    assert len(examples) == made and [failure.kind for failure in failures] == ["has_not_judged"] * left_out
    assert "Episode finished" not in "".join(example.text for example in examples)
    places = Counter(number for example in examples for number in re.findall(r"^I will choose option (\d)$", example.text, re.M))
    assert chi_square(places.values(), 4) < CHI_SQUARE[3]
    assert build_has(None, runs, tasks, config, 1, proposers={"others": OthersProposer(runs, tasks)})[0] == examples
