"""The Expander as a part of synthesis: over a real HTTP server that plays the agent, into the lake, and once only."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.run_stage import run_attempt
from flows.stages.synthesis.stage import synthesise
from synth.corpora.expander import SYSTEM
from tests.flows.test_synthesis_kinds import SMALL, films
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake, Outcome
from warehouse.errors import RequestError


def agent(body: dict[str, Any]) -> str:
    """Describes a film by what the question does not ask; of films of an even number it quotes what is not there."""
    messages = [message["content"] for message in body["messages"]]
    if messages[0] != SYSTEM:
        return "Yes." if "kind of thing" in messages[-1] else "I cannot say."
    name = re.search(r"Name to replace: (Film (\d+))", messages[1])
    assert name is not None
    number = int(name[2])
    if len(messages) == 2:
        return f"<search>{name[1]}"
    relation, value = ("city", f"Place {number % 5}") if "Person" in messages[1] else ("director", f"Person {number % 7}")
    quote = f"{name[1]} {relation} {value}" if number % 2 else "as everybody knows"
    fact = {"subject": name[1], "relation": relation, "object": value, "quote": quote, "document": f"d{number}"}
    return f"<answer>{json.dumps({'description': f'the film of {value}', 'facts': [fact]})}"


@pytest.mark.slow
def test_questions_are_expanded_into_the_lake_and_paid_for_once(tmp_path: Path) -> None:
    with MisbehavingServer(answer=agent) as server, Lake(tmp_path / "home") as lake:
        options = [
            *films(tmp_path / "data"),
            'synth.webshaper.counts={"1":20}',
            "synth.expander.count=12",
            "synth.teacher.kind=openai",
            "synth.teacher.model=m",
            f"synth.teacher.base_url={server.url}",
        ]
        context = RunContext(Home(tmp_path / "home"), load_config(str(SMALL), options), lake)
        for run_id in ("t1-first", "t1-again"):
            run_attempt(lake, run_id, "synth", 1, {}, lambda run: synthesise(context, run, 1, "webshaper"))
            asked = len(server.bodies)
        tasks = {task.key: task for task in lake.tasks(split="train")}
        runs = lake.trajectories("stage = 'expander'")
        failures = [failure for failure in lake.failures("expander") if "trajectory" in failure.item]
    assert asked == len({json.dumps(body, sort_keys=True) for body in server.bodies}), "nothing is asked twice"
    made = [task for task in tasks.values() if "expanded_from" in task.provenance]
    assert made and failures and len(made) + len(failures) == 12 == len(runs)
    assert {run.outcome for run in runs} == {Outcome.SUCCESS, Outcome.FAILURE}
    for task in made:
        before = tasks[task.provenance["expanded_from"]]
        assert task.answers == before.answers and task.layers == before.layers + 1
        assert "the film of" in task.question and "answers" in task.proofs["unproven"]


def test_expansion_without_a_teacher_is_refused() -> None:
    with pytest.raises(RequestError, match=r"expander asks for one: set synth\.teacher\.kind"):
        load_config(str(SMALL), ["synth.expander.count=3"])
