"""Rewording as a part of synthesis: over a real HTTP server, into the lake, and once only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.stage import synthesise
from synth.questions.rewording import RewordingDefect
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"


def reworded(body: dict[str, Any]) -> str:
    """The question in other words, where it is short; else as it was."""
    question = body["messages"][-1]["content"].removesuffix("?")
    return f"Can you tell me the {question}?" if question.count(" of ") < 2 else question


@pytest.mark.slow
def test_questions_are_reworded_into_the_lake_and_paid_for_once(tmp_path: Path) -> None:
    with MisbehavingServer(answer=reworded) as server, Lake(tmp_path) as lake:
        options = [
            "synth.teacher.kind=openai",
            "synth.teacher.model=m",
            f"synth.teacher.base_url={server.url}",
            "synth.rewording.relations=words",
        ]
        context = RunContext(Home(tmp_path), load_config(str(SMALL), options), lake)
        for run_id in ("t1-first", "t1-again"):
            run_attempt(lake, run_id, "synth", 1, {}, lambda run: synthesise(context, run, 1, "webshaper"))
        tasks = {task.key: task for task in lake.tasks(split="train")}
        dropped = [failure for failure in lake.failures("rewording") if failure.kind == RewordingDefect.UNCHANGED]
        asked = len(server.bodies)
    made = [task for task in tasks.values() if "reworded_from" in task.provenance]
    assert made and dropped
    for task in made:
        before = tasks[task.provenance["reworded_from"]]
        assert task.question == f"Can you tell me the {before.question}"
        assert (task.formula, task.answers, task.hops) == (before.formula, before.answers, before.hops)
    assert len(made) + len(dropped) == len(tasks) - len(made) == asked
