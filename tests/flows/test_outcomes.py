"""Choices labelled by outcome as a part of synthesis: over a real HTTP server or a real engine into the lake, within budgets, once only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl.retrieval.search import passage
from tests.flows.homes import ended, home_at, make
from tests.flows.test_expansions import FEW, teacher_at
from tests.rl.conftest import DOCUMENTS, create_tiny_policy
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.writing_models import asked_in
from warehouse import Call, Completion, Lake, Outcome, Policy, Task, Trajectory, Turn
from warehouse.digests import digest_files
from warehouse.errors import RequestError

pytestmark = pytest.mark.slow

HAS = (*FEW, "synth.has_count=5", "synth.has.n_alternatives=1")
BY_TEACHER = (*HAS, "synth.has.mixture={teacher=1.0}", 'synth.has.outcomes={player="teacher",turns=2}')


def writes_and_plays(body: dict[str, Any]) -> str:
    """Rewrites the action taken, proposes to search for Blue River, and as a player answers with the seat where it reads of it."""
    asked = asked_in(body)
    if "Write that action" in asked:
        return json.dumps({"think": "so be it", "tool": "search", "arguments": "Quiet Harbor"})
    if "Write one other action" in asked:
        return json.dumps({"think": "the employer", "tool": "search", "arguments": "Blue River"})
    return "Green Lake" if "seat in Green Lake" in asked else "I cannot say"


def runs(stage: str, texts: Sequence[str] = (passage(DOCUMENTS[3]),)) -> list[Task | Trajectory]:
    """A run per text, which is what it found at its only step."""
    made: list[Task | Trajectory] = []
    for number, text in enumerate(texts):
        call = Call("search", "Quiet Harbor", "ok", text)
        turn = Turn(0, (), (), "<search> Quiet Harbor</search>", "search", "Quiet Harbor", (), text, None, "ok", 0.0, 0, calls=(call,))
        made.append(Task(f"q{number}", "search", f"Where is the seat of the employer of Stone {number}?", ("Green Lake",)))
        made.append(replace(ended(f"r{number}", f"q{number}", Outcome.FAILURE, "other", stage), reward=0.0, prompt_ids=(), turns=(turn,)))
    return made


def counts(lake: Lake) -> dict[tuple[str, int], float]:
    return {(metric.name, metric.step): metric.value for metric in lake.metrics() if not metric.name.startswith("count.seconds")}


def test_imported_runs_get_contrasts_and_one_that_cannot_be_replayed_a_reason(tmp_path: Path) -> None:
    with MisbehavingServer(answer=writes_and_plays) as server, home_at(tmp_path, *BY_TEACHER, *teacher_at(server)) as context:
        lake = context.lake
        lake.add([*DOCUMENTS, *runs("import", [passage(DOCUMENTS[3]), "It was another corpus."])])
        make(context, "has")
        (example,), continued = lake.examples(["has"]), lake.trajectories("stage = 'continuation'")
        (failure,) = lake.failures("synth")
        (row,) = lake.query(
            "SELECT count(*) AS n, count(*) FILTER (outcome = 'success') AS won FROM trajectories "
            "WHERE provenance->'continues'->>'trajectory' = 'r0' AND NOT (provenance->'continues'->'taken')::BOOLEAN"
        ).to_pylist()
        counted = {name.removesuffix(".decisions of imported runs"): value for (name, _), value in counts(lake).items()}
    assert "search Blue River" in example.text and example.text.endswith("My decision is Correct")
    assert example.sources[0] in {run.id for run in continued if run.outcome is Outcome.SUCCESS}
    assert (failure.kind, failure.item["trajectory"]) == ("has_step_not_replayed", "r1")
    assert row == {"n": 2, "won": 2}
    assert (counted["count.continuations"], counted["count.continuations_invalid"]) == (8, 2), "the action that r1 took brings other text"
    assert (counted["count.choices"], counted["count.others_preferred"]) == (1, 1)


Made = tuple[set[str], list[str], dict[tuple[str, int], float], int]
"""What synthesis makes: continuations, examples, counts; and how many requests it takes."""


def synthesised(root: Path, server: MisbehavingServer, most: int) -> Made:
    """The home after synthesis, begun or gone on with, that may make so many requests."""
    settings = (*BY_TEACHER, *teacher_at(server), "synth.has.where=stage = 'rollout'", "synth.teacher.concurrency=1")
    with home_at(root, *settings, f"synth.teacher.max_requests={most}") as context:
        context.lake.add([*DOCUMENTS, *runs("rollout", [passage(DOCUMENTS[3])] * 2)])
        make(context, "has")
        asked = [json.dumps(body, sort_keys=True) for body in server.bodies]
        assert len(set(asked)) == len(asked) == len(context.lake.read(Completion))
        return {*began(context.lake)}, [example.id for example in context.lake.examples()], counts(context.lake), len(asked)


def began(lake: Lake) -> dict[str, Any]:
    return {run.id: run.started for run in lake.trajectories("stage = 'continuation'")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    with MisbehavingServer(answer=writes_and_plays) as server:
        return synthesised(tmp_path_factory.mktemp("whole"), server, 100)


@pytest.mark.parametrize("limit", [3, 6, 9])
def test_a_budget_that_ends_amid_continuations_is_resumed_and_nothing_is_asked_twice(undisturbed: Made, tmp_path: Path, limit: int) -> None:
    with MisbehavingServer(answer=writes_and_plays) as server:
        with pytest.raises(RequestError, match=r"synth\.teacher\.max_requests"):
            synthesised(tmp_path, server, limit)
        with Lake(tmp_path, read_only=True) as lake:
            before = began(lake)
        assert synthesised(tmp_path, server, 100) == undisturbed and len(undisturbed[1]) == 2
    with Lake(tmp_path, read_only=True) as lake:
        assert before.items() <= began(lake).items(), "none is rolled out again"
    assert bool(before) == (limit > 4)


@pytest.mark.engine
def test_the_policy_goes_on_in_its_own_tokens_and_only_once(tmp_path: Path) -> None:
    """An untrained policy never finds the seat, but the answer of another run says it."""
    settings = [
        *HAS, "synth.has.mixture={others=1.0}", "synth.has.where=stage = 'rollout'",
        'synth.has.outcomes={player="policy",turns=1}', "rollout.engine.kv_cache_gib=0.1",
        "rollout.limits={max_context_tokens=200,max_action_tokens=8,max_observation_tokens=48}",
    ]  # fmt: skip
    (task, run), folder = runs("rollout"), create_tiny_policy(tmp_path / "policy", seed=0)
    assert isinstance(run, Trajectory)
    answered = replace(run.turns[0], action="<answer> Green Lake</answer>", tool="answer", arguments="Green Lake", observation="", calls=())
    other = replace(run, id="r1", turns=(answered,), outcome=Outcome.SUCCESS, reward=1.0)
    with home_at(tmp_path / "home", *settings) as context:
        champion = Policy("t1-rl", None, "rl", str(folder), digest_files(folder), None, 1, True)
        context.lake.add([*DOCUMENTS, task, run, other, champion])
        try:
            for run_id in ("t2-synth-has", "t2-again"):
                make(context, "has", 2, run_id)
        finally:
            context.stop_engines()
        continued = context.lake.trajectories("stage = 'continuation'")
        texts = [example.text for example in context.lake.examples(["has"])]
    assert len(continued) == 6, "two of each search and one of each answer"
    assert len({run.id for run in continued}) == 6 and {run.policy for run in continued} == {"t1-rl"}
    searched = [run for run in continued if run.turns[0].tool == "search"]
    for run in searched:
        replayed, own = run.turns
        assert (replayed.action, replayed.calls[0].observation) == ("<search> Quiet Harbor</search>", passage(DOCUMENTS[3]))
        assert run.prompt_ids and own.action_ids and any(own.action_logprobs) and not any(replayed.action_logprobs)
        assert run.outcome is Outcome.FAILURE
    assert len({run.turns[1].action_ids for run in searched}) > 1, "continuations differ"
    assert len(texts) == 2 and all("answer Green Lake" in text and text.endswith("My decision is Correct") for text in texts)
