"""Every path of synthesis that a model writes, against a server a third of whose replies are late, cut, chatty, in other keys, refusals, …

Each is killed three times and started again: it makes what an undisturbed run makes, asks for nothing that it had been told, and has
counted every token that the server would bill.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.home import Home
from flows.operations.budgets import EARLIER
from synth.teachers.model_teacher import FILE, Ledger, Spent
from synth.teachers.openai_server import messages_of
from tests.end_to_end.synthesis_worker import Worker, worker
from tests.synth import writing_models
from tests.synth.expanding_model import expanding_model
from tests.synth.teachers.faulty_server import ONCE, FaultyServer
from warehouse import Completion, Document, Lake, Outcome, StopReason, Task, Trajectory, Turn
from warehouse.digests import digest
from warehouse.records import Message, Request

pytestmark = pytest.mark.end_to_end

SMALL = Path(__file__).parent / "small.toml"
CONCURRENCY = 4
TEACHER = (
    "synth.teacher.kind=openai",
    "synth.teacher.model=m",
    f"synth.teacher.concurrency={CONCURRENCY}",
    "synth.teacher.timeout_seconds=3",
    "synth.teacher.first_pause_seconds=0.01",
    "synth.teacher.max_tokens=3000000",
    "synth.batch=20",
)
Answer = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class ModelPath:
    """One kind of synthesis: its settings, what the model writes, what must be there beforehand, and what must come of it."""

    kind: str
    settings: tuple[str, ...]
    answer: Answer
    prepare: Callable[[Path], tuple[str, ...]]
    """Puts into a home's folder what is needed, and returns settings that name it."""
    made: Callable[[Lake], int]
    """How much of what the path is for a home has."""


def imported_runs(root: Path, seen: str = "seen {}") -> tuple[str, ...]:
    """Forty runs of others, of two steps each."""
    judged = (Outcome.SUCCESS, 1.0, 0, datetime(2026, 1, 1, tzinfo=UTC), 0.0)
    with Lake(root) as lake:
        for number in range(40):
            first = Turn(0, (), (), "", "search", f"place {number}", (), seen.format(number), None, "ok", 0.0, 0)
            last = replace(first, index=1, tool="answer", arguments=f"city {number}", observation="")
            run = Trajectory(f"r{number}", f"q{number}", "other", "import", 0, (), (first, last), StopReason.ANSWERED, *judged)
            lake.add([Task(f"q{number}", "search", f"where is place {number}?", (f"city {number}",), split="other"), run])
    return ()


DECISIONS = ModelPath(
    "has",
    ('synth.has.mixture={"teacher": 1.0}', "synth.has_count=40", "synth.has.rendering=listing"),
    writing_models.decision_writer,
    imported_runs,
    lambda lake: len(lake.examples(["has"])),
)


def replayable_runs(root: Path) -> tuple[str, ...]:
    """Such runs, twelve of which have searches that bring the same today."""
    imported_runs(root, "place {} is seen")
    with Lake(root) as lake:
        lake.add(Document(f"p{number}", f"place {number}", f"place {number} is seen", "test") for number in range(12))
    return ()


OUTCOMES = ModelPath(
    "has",
    (*DECISIONS.settings, 'synth.has.outcomes={player="teacher",turns=2}'),
    writing_models.decision_player,
    replayable_runs,
    lambda lake: min(len(lake.examples(["has"])), len(lake.trajectories("stage = 'continuation'"))),
)

FIRST_ORDER = ModelPath(
    "fas",
    (
        "synth.fas.plans=teacher",
        "synth.fas.slice_reasoning=true",
        "synth.fas.plan_slices=30",
        "synth.fas.reasoning={}",
        'synth.fas.memory=["facts", "passages", "results"]',
    ),
    writing_models.first_order_model,
    imported_runs,
    lambda lake: min(len(lake.examples(["fas_plan"])), len(lake.examples(["fas_reason"]))),
)


EXPANSIONS = ModelPath(
    "webshaper",
    (
        "synth.webshaper.structure=layerwise",
        "synth.webshaper.intersections=0.5",
        'synth.webshaper.counts={"1":8,"2":4}',
        "synth.direct_attempts.attempts=2",
        "synth.expander.count=12",
        "synth.expander.horizon=5",
    ),
    expanding_model,
    lambda root: (),
    lambda lake: sum("expanded_from" in task.provenance for task in lake.tasks()),
)


def claim(root: Path, path: ModelPath, url: str) -> Path:
    """A home of its own."""
    settings = path.prepare(root)
    Home(root).claim(load_config(str(SMALL), (*TEACHER, f"synth.teacher.base_url={url}", *path.settings, *settings)))
    return root


def content(root: Path) -> dict[str, Any]:
    """Everything that synthesis has stored, no row twice, but for which tries had to be made again."""
    with Lake(root, read_only=True) as lake:
        for table, key in (("tasks", "key"), ("examples", "id"), ("failures", "id"), ("documents", "id"), ("metrics", "(name, step)")):
            (row,) = lake.query(f"SELECT count(*) AS n, count(DISTINCT {key}) AS different FROM {table}").to_pylist()
            assert row["n"] == row["different"], table
        (run,) = lake.runs()
        return {
            "tasks": lake.tasks(),
            "examples": lake.examples(),
            "facts": lake.facts(),
            "documents": lake.documents(),
            "checks": lake.query("SELECT * EXCLUDE (recorded) FROM checks ORDER BY ALL").to_pylist(),
            "failures": sorted(repr(failure) for failure in lake.failures() if not failure.kind.startswith("retried_")),
            "counts": {(m.name, m.step): m.value for m in lake.metrics() if not m.name.startswith("count.seconds")},
            "figures": {name: value for name, value in run.figures.items() if name not in ("seconds", EARLIER)},
            "state": run.state,
        }


def told(root: Path) -> set[str]:
    """The requests whose completions are stored, as the server knows them."""
    with Lake(root, read_only=True) as lake:
        return {digest(request_body(completion)) for completion in lake.read(Completion)}


def request_body(completion: Completion) -> dict[str, Any]:
    """What was sent for a completion."""
    request = dict(completion.request)
    asked = Request(tuple(Message(**message) for message in request["messages"]), tools=request.get("tools"))
    rest = {name: request[name] for name in ("temperature", "seed", "max_tokens")} | ({"stop": request["stop"]} if request["stop"] else {})
    return {"model": "m", "messages": messages_of(asked), **rest, **({"tools": json.loads(asked.tools)} if asked.tools else {})}


def undisturbed(at_work: Worker, root: Path, path: ModelPath) -> tuple[dict[str, Any], int]:
    """What a run makes that is not killed, and how many requests it takes."""
    with FaultyServer(answer=path.answer, late_seconds=6.0) as server:
        assert at_work.run(claim(root, path, server.url), kind=path.kind) == 0
        assert {fault for fault in server.met if fault != "well"}, "there were faults"
    with Lake(root, read_only=True) as lake:
        assert path.made(lake) > 0
    return content(root), server.asked.total()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(DECISIONS, id="decisions"),
        pytest.param(OUTCOMES, id="outcomes"),
        pytest.param(FIRST_ORDER, id="first_order"),
        pytest.param(EXPANSIONS, id="expansions"),
    ],
)
@pytest.mark.timeout(1200)
@pytest.mark.long
def test_a_path_that_is_killed_makes_the_same_and_asks_for_nothing_twice(tmp_path: Path, path: ModelPath) -> None:
    with worker() as at_work:
        expected, requests = undisturbed(at_work, tmp_path / "undisturbed", path)
        assert expected["state"] == "completed"
        home, kills = tmp_path / "killed", 3
        with FaultyServer(answer=path.answer, late_seconds=6.0) as server:
            claim(home, path, server.url)
            for number in range(1, kills + 1):
                limit = requests * number // (kills + 1)
                status = at_work.run(home, kind=path.kind, kill_when=lambda limit=limit: server.asked.total() >= limit)
                assert status == -signal.SIGKILL
                known, before = told(home), dict(server.asked)
                assert known <= before.keys() and len(known) > limit // 2
            assert at_work.run(home, kind=path.kind) == 0
        assert content(home) == expected
    asked_again = {key: count for key, count in server.asked.items() if count > 1}
    assert all(server.asked[key] == before[key] for key in known), "what was told before the last kill is not asked again"
    assert sum(count - 1 for count in asked_again.values()) <= sum(server.met[fault] for fault in ONCE) + kills * CONCURRENCY
    spent = Ledger(home / "lake" / FILE, "openai:m", Spent()).spent
    assert server.billed <= spent.tokens
    assert 0 <= spent.requests - server.asked.total() <= kills * CONCURRENCY, "a request is written down before it is made"
