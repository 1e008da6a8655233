"""`flywheel eval` counts the failures that state an accepted answer among other words; no verdict depends on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eval.suites.tasks import enter_suite
from flows.config import load_config
from flows.home import Home
from flows.suites.config import find_suite
from flows.suites.results import read_stated_answers, states
from tests.flows.suites.test_eval_command import NOW, TASKS, document, evaluate, settings_of, tried
from warehouse import Lake, Policy, Run, Task

BERLIN, RIVERS = Task("b", "search", "?", ("Berlin",)), Task("r", "search", "?", ("Rhine", "Elbe"), provenance={"set": True})
HALF, STREET, NONE = Task("h", "math", "?", ("42",)), Task("s", "search", "?", ("Straße",)), Task("n", "search", "?", ())
CASES = [
    (BERLIN, "The capital of Germany is Berlin.", True),
    (BERLIN, "Germany's capital: berlin!", True),
    (BERLIN, "A Berliner", False),
    (BERLIN, "<think>Berlin? No, Bonn.</think>Bonn", False),
    (BERLIN, "<think>Which?</think>It is Berlin.", True),
    (RIVERS, "They are the Elbe and the Rhine.", True),
    (HALF, "The result is 42 apples.", True),
]  # fmt: skip


@pytest.mark.parametrize(("task", "answer", "stated"), CASES)
def test_an_accepted_answer_among_other_words_is_recognised(task: Task, answer: str, stated: bool) -> None:
    assert states(task, answer) is stated


@pytest.mark.slow
def test_eval_tells_how_many_failures_state_an_accepted_answer_and_what_to_do(tmp_path: Path) -> None:
    config = load_config("quickstart")
    Home(tmp_path / "home").claim(config)
    rows = [{"key": task.key, "question": task.question, "answers": task.answers, "hops": task.hops} for task in TASKS]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = find_suite("tasks", config.evaluation, settings_of(tmp_path))
    with Lake(tmp_path / "home") as lake:
        lake.add(enter_suite(task, "mine", verifier="qa_em") for task in TASKS)
        for policy, said in (("t1-sft", "The name is {}."), ("t1-rl", "I do not know.")):
            lake.add([Policy(policy, None, "sft", f"policies/{policy}", "w", None, promoted=policy == "t1-sft")])
            lake.add([Run(f"eval-{policy}-mine", "eval", 1, {"suite": suite.model_dump(mode="json")}, "d", 0, 1, "completed", NOW)])
            runs = [(task, tried(policy, number, solved=number < 60, broken=number == 99)) for number, task in enumerate(TASKS)]
            lake.add(replace(run, turns=(replace(run.turns[0], arguments=said.format(task.answers[0])),)) for task, run in runs)
        assert (found := read_stated_answers(lake, "t1-sft", "mine")).stating == found.failures == 39, (
            "successes and faults are no failures"
        )
    stated = document(tmp_path)["stated_answers"]
    assert (stated["failures"], stated["stating"]) == (39, 39) and "have a model judge" in stated["advice"]
    told = evaluate(tmp_path).replace("\n", " ")
    assert "success = 60.6" in told and "39 of 39 failures state an accepted answer among other words" in told
    assert document(tmp_path, "--policy", "t1-rl")["stated_answers"] == {"failures": 39, "stating": 0, "advice": None}
    assert "state an accepted answer" not in evaluate(tmp_path, "--policy", "t1-rl")
