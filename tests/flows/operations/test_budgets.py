"""Budgets of a turn, which faults a stage is tried again after, and the schedules of deployments."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import duckdb
import httpx
import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings
from ray.exceptions import ActorDiedError, RayTaskError

from flows.config import load_config
from flows.context import StageRun
from flows.home import HomeBusy
from flows.operations.budgets import GIB, BudgetSpent, Spending, overspent, slice_meter, turn_meter
from flows.operations_config import BudgetConfig
from flows.pipeline import is_fault, run_attempt
from flows.plan import gate_id, next_turn
from flows.scheduled import ENVIRONMENT, SCHEDULES, check_server, deployments
from flows.stages.synthesis.batches import Batch, work_off
from rl.engines.base import EngineFault
from rl.env_pool.circuit_breaker import CircuitOpen
from rl.worker_death import WorkerDied
from tests.flows.homes import ended
from warehouse import Completion, Document, Lake, Outcome, Run, Trajectory, Turn
from warehouse.errors import RequestError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("budget", "spent", "limit"),
    [
        (BudgetConfig(), Spending(1e9, 10**12, 10**15), None),
        (BudgetConfig(hours=1), Spending(3600), "hours"),
        (BudgetConfig(tokens=10), Spending(0, 10), "tokens"),
        (BudgetConfig(usd=0.5), Spending(0, 10**9, 0, 0.49), None),
        (BudgetConfig(usd=0.5), Spending(usd=0.5), "usd"),
        (BudgetConfig(disk_gib=0.5), Spending(0, 0, GIB // 2), "disk_gib"),
    ],
)
def test_the_first_limit_that_is_reached_is_named(budget: BudgetConfig, spent: Spending, limit: str | None) -> None:
    found = overspent(budget, spent)
    assert (found[0] if found else None) == limit


def test_hours_tokens_and_disk_of_a_turn_are_those_of_the_lake(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    with Lake(tmp_path) as lake:
        lake.add([completion("a", 100)])
        meter = turn_meter(lake, tmp_path, 2, BudgetConfig(tokens=1))
        assert meter.measure().since(meter.before).tokens == 0, "what the teacher wrote before the turn is not the turn's"
        lake.add([run("t1-cpt", 1, now, 50.0), run("t2-cpt", 2, now, 30.0), run("t2-sft", 2, now, 12.0)])
        lake.add([trajectory("x", 2, 7), trajectory("y", 1, 100), completion("b", 20)])
        (tmp_path / "weights").write_bytes(b"0" * 1000)
        spent = turn_meter(lake, tmp_path, 2, BudgetConfig(tokens=1)).measure().since(meter.before)
        assert (spent.seconds, spent.tokens) == (42.0, 27)
        assert spent.size > 1000


def test_dollars_of_a_turn_are_those_of_its_completions(tmp_path: Path) -> None:
    def paid(key: str, usd: float | None) -> Completion:
        return replace(completion(key, 10), usd=usd)

    with Lake(tmp_path) as lake:
        lake.add([paid("a", 0.25), paid("b", None)])
        meter = turn_meter(lake, tmp_path, 1, BudgetConfig(usd=1))
        lake.add([paid("c", 0.5), paid("d", 0.125), paid("e", None)])
        assert meter.measure().since(meter.before).usd == 0.625
        assert lake.query("SELECT usd FROM cost WHERE stage = 'teacher'").to_pylist() == [{"usd": 0.875}]


def test_dollars_of_a_teacher_without_prices_cannot_be_limited() -> None:
    server = ["budget.usd=1", "synth.teacher.kind=openai", "synth.teacher.model=m"]
    with pytest.raises(RequestError, match=r"budget\.usd needs the prices of synth\.teacher"):
        load_config("quickstart", server)
    assert load_config("quickstart", [*server, "synth.teacher.usd_per_million=[0.5,2]"]).synth.teacher.usd(1_000_000, 500_000) == 1.5


def test_a_spent_budget_stops_a_stage_and_prevents_the_next_one(tmp_path: Path) -> None:
    steps: list[int] = []

    def work(at_work: StageRun) -> dict[str, Any]:
        for step in range(1, 6):
            steps.append(step)
            lake.add([trajectory(f"s{step}", 1, 10)])
            if at_work.metric(step, {"loss": 1.0}):
                break
        return {"policy": "t1-cpt"}

    with Lake(tmp_path) as lake:
        meter = turn_meter(lake, tmp_path, 1, BudgetConfig(tokens=25))
        meter.look_seconds = 0.0
        worked, figures = run_attempt(lake, "t1-cpt", "cpt", 1, {}, work, meter)
        assert worked and steps == [1, 2, 3]
        assert "30 tokens of 25" in figures["stopped"]
        assert [(f.stage, f.kind, f.item) for f in lake.failures()] == [("cpt", "budget_tokens", {"run": "t1-cpt", "turn": 1})]
        assert run_attempt(lake, "t1-cpt", "cpt", 1, {}, work, meter)[0] is False, "it is done"
        with pytest.raises(BudgetSpent, match=r"t1-sft .*budget\.tokens"):
            run_attempt(lake, "t1-sft", "sft", 1, {}, work, turn_meter(lake, tmp_path, 1, BudgetConfig(tokens=25)))
        assert [run.id for run in lake.runs()] == ["t1-cpt"]
        assert run_attempt(lake, "t2-cpt", "cpt", 2, {}, work, turn_meter(lake, tmp_path, 2, BudgetConfig(tokens=25)))[0] is True


def test_a_slice_of_synthesis_is_paused_and_the_next_slice_goes_on(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:

        def batch(number: int) -> Batch:
            return Batch("documents", number, lambda: ([Document(f"d{number}", "t", "x" * 1000, "s"), completion(str(number), 10)], []))

        def work(at_work: StageRun) -> dict[str, Any]:
            work_off(at_work, [batch(number) for number in range(5)])
            return {}

        states = []
        while not states or states[-1] != "completed":
            meter = slice_meter(lake, tmp_path, 1, BudgetConfig(tokens=20), BudgetConfig())
            meter.look_seconds = 0.0
            run_attempt(lake, "t1-synth", "synth", 1, {}, work, meter)
            states.append(lake.runs()[0].state)
        assert states == ["paused", "paused", "completed"]
        assert len(lake.documents()) == 5
        assert lake.failures() == [], "a pause drops nothing"


def test_slices_count_towards_the_budget_of_the_turn(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([completion("before", 100)])

        def work(at_work: StageRun) -> dict[str, Any]:
            sleep(0.2)
            work_off(at_work, [Batch("documents", n, lambda n=n: ([completion(str(n), 10)], [])) for n in range(5)])
            return {}

        made = []
        for _ in range(2):
            meter = slice_meter(lake, tmp_path, 1, BudgetConfig(tokens=20), BudgetConfig(tokens=30))
            meter.look_seconds = 0.0
            assert meter.within is not None
            meter.within.look_seconds = 0.0
            run_attempt(lake, "t1-synth", "synth", 1, {}, work, meter)
            made.append(len(lake.metrics("t1-synth")) // 2)
        whole = turn_meter(lake, tmp_path, 1, BudgetConfig(tokens=30))
        spent = whole.measure().since(whole.before)
        assert made == [2, 3] and lake.runs()[0].state == "paused"
        assert spent.tokens == 30 and spent.seconds > 0.4
        assert (whole.overspent() or ("",))[0] == "tokens"


def run(run_id: str, turn: int, started: datetime, seconds: float) -> Run:
    return Run(run_id, "cpt", turn, {}, "", None, None, "completed", started, started + timedelta(seconds=seconds))


def completion(name: str, tokens: int) -> Completion:
    return Completion(name, "teacher", {"q": name}, "text", "stop", tokens // 2, tokens - tokens // 2)


def trajectory(name: str, turn: int, tokens: int) -> Trajectory:
    said = Turn(0, tuple(range(tokens)), (0.0,) * tokens, "said", None, None, (), "", None, None, 0.1, 0)
    return replace(ended(name, "k", Outcome.SUCCESS, stage="rl", wheel_turn=turn), turns=(said,))


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (OSError(28, "No space left on device"), True),
        (TimeoutError("hung"), True),
        (EngineFault("out of memory"), True),
        (WorkerDied("an engine", "by SIGKILL"), True),
        (ActorDiedError(), True),
        (RayTaskError("step", "trace", ValueError("inside")), True),
        (httpx.ConnectError("refused"), True),
        (duckdb.IOException("database is locked"), True),
        (RequestError("no such suite"), False),
        (HomeBusy("in use"), False),
        (BudgetSpent("spent"), False),
        (CircuitOpen("the environment is down"), False),
        (PermissionError(13, "not yours"), False),
        (duckdb.BinderException("no such column"), False),
        (KeyError("a bug"), False),
    ],
)
def test_faults_of_machines_are_retried_and_wrong_requests_budgets_and_bugs_are_not(error: Exception, retried: bool) -> None:
    assert is_fault(error) == retried


def test_a_damaged_catalogue_is_a_fault_of_the_disk(tmp_path: Path) -> None:
    Lake(tmp_path).close()
    catalogue = tmp_path / "lake" / "catalog.sqlite"
    catalogue.write_bytes(b"\0" * catalogue.stat().st_size)
    with pytest.raises(duckdb.Error) as found:
        Lake(tmp_path)
    assert is_fault(found.value)


ROOT = Path(__file__).parents[3]


def test_prefect_yaml_and_the_code_define_the_same_deployments(tmp_path: Path) -> None:
    told = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    made = deployments(tmp_path, "demo", {}, pool="pool")
    assert [one["entrypoint"] for one in told] == [one.entrypoint for one in made]
    assert [one["schedules"] for one in told] == [[{"cron": schedule.cron, "timezone": "UTC"}] for schedule in SCHEDULES]
    for one, deployment in zip(told, made, strict=True):
        assert one["concurrency_limit"] == {"limit": deployment.concurrency_limit, "collision_strategy": "CANCEL_NEW"}
        assert one["tags"] == deployment.tags == ["flywheel"]
        assert one["parameters"].keys() == deployment.parameters.keys()
        assert one["work_pool"]["job_variables"] == deployment.job_variables == {"env": ENVIRONMENT}


def test_a_missing_server_is_one_sentence() -> None:
    for address, told in ((None, "prefect server start"), ("http://127.0.0.1:9/api", "http://127.0.0.1:9/api")):
        with temporary_settings({PREFECT_API_URL: address}), pytest.raises(RequestError, match=told):
            check_server()


def test_the_next_turn_is_the_first_without_a_gate() -> None:
    assert next_turn(set()) == 1
    assert next_turn({gate_id(1), gate_id(2), "t3-cpt"}) == 3
