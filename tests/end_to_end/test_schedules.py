"""Schedules against a real Prefect server: a run that is due is worked off, one that fails is retried and told of, one is cancelled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx
import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling
from prefect.workers.process import ProcessWorker

from flows.config import load_config
from flows.context import open_context
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.stage import synthesise
from flows.stages.training import initialise
from tests.flows.homes import flywheel
from tests.ports import free_port
from warehouse import Lake

pytestmark = pytest.mark.end_to_end

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).parent / "small.toml"
FLYWHEEL = str(Path(sys.executable).parent / "flywheel")
POOL = "flywheel"
PATIENCE_SECONDS = 240.0
SELDOM = timedelta(minutes=2)
"""Between two runs: were one due sooner than another ends, they would pile up on a busy machine until the server refuses its clients."""
MOST_AFTER_CANCELLING = 10.0 * (os.cpu_count() or 1)
"""Seconds of the processor that a cancelled run may still take: all processors for as long as its processes have to end."""


def settings_for(heard: Path) -> list[str]:
    """A home whose faults are soon tried again, whose events are written into a folder, and whose suite takes an engine a while."""
    script = f"import sys, time, pathlib; pathlib.Path({str(heard)!r}, str(time.time_ns())).write_text(sys.stdin.read())"
    return [
        "attempts.retries=2",
        "attempts.first_pause_seconds=0.1",
        f"events.command={json.dumps([sys.executable, '-c', script])}",
        'evaluation.suites.held_out.counts={"1":200,"2":200}',
        "corpus.held_out.entities=600",
    ]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of everything that talks to the server, which is up."""
    port = free_port()
    made = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect")),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # It looks at every schedule each time; the loop for recent ones, at those of its last seconds, and a busy server comes too late.
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "DO_NOT_TRACK": "1",
    }
    with background("server", "start", "--host", "127.0.0.1", "--port", str(port), environment=made):
        soon(lambda: answers(made["PREFECT_API_URL"]), "the server answers")
        with temporary_settings({PREFECT_API_URL: made["PREFECT_API_URL"]}):
            yield made


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the events of the homes are written."""
    return tmp_path_factory.mktemp("heard")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, heard: Path) -> Path:
    """A home with a lake."""
    root = tmp_path_factory.mktemp("homes") / "demo"
    Home(root).claim(load_config(str(SMALL), settings_for(heard)))
    Lake(root).close()
    return root


@pytest.fixture(scope="module")
def champion(home: Path) -> Path:
    """That home with tasks, and a first policy that is said to be the champion."""
    with open_context(home) as context:
        run_attempt(context.lake, "t1-synth", "synth", 1, {}, lambda run: synthesise(context, run, 1))
        run_attempt(context.lake, "t0-init", "init", 0, {}, lambda run: initialise(context, run))
        context.lake.replace([replace(context.policy("t0-init"), promoted=True)])
    return home


@pytest.fixture(scope="module")
def worked(environment: dict[str, str], home: Path) -> Iterator[SyncPrefectClient]:
    """The home's schedules in a work pool that a worker works off."""
    with get_client(sync_client=True) as client:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        with background("worker", "start", "--pool", POOL, environment=environment):
            deployed = flywheel("deploy", "--home", home, "--pool", POOL)
            assert deployed.split() == [f"flywheel-{name}/demo" for name in ("turn", "synthesis", "evaluation", "compaction")]
            yield client


def test_a_run_that_is_due_is_picked_up_by_a_worker_and_seen_as_completed(worked: SyncPrefectClient, home: Path) -> None:
    deployment = worked.read_deployment_by_name("flywheel-compaction/demo")
    soon_and_seldom = IntervalSchedule(interval=SELDOM, anchor_date=datetime.now(UTC) + timedelta(seconds=20))
    worked.create_deployment_schedules(deployment.id, [(soon_and_seldom, True)])
    done = soon(lambda: next((run for run in runs_of(worked, deployment.id) if run.state_name == "Completed"), None), "a run is completed")
    worked.pause_deployment(deployment.id)
    assert done.auto_scheduled and done.work_pool_name == POOL
    assert done.parameters == {"home": str(home)} and "flywheel" in done.tags
    (shown,) = [artifact for artifact in worked.read_artifacts() if artifact.key == "compaction"]
    assert "MB" in (shown.description or "")


@pytest.mark.long
def test_a_run_that_fails_is_retried_and_then_reported(worked: SyncPrefectClient, tmp_path: Path, heard: Path) -> None:
    broken = tmp_path / "broken"
    Home(broken).claim(load_config(str(SMALL), settings_for(heard)))
    Lake(broken).close()
    catalogue = broken / "lake" / "catalog.sqlite"
    catalogue.write_bytes(b"\0" * catalogue.stat().st_size)
    deployment = worked.read_deployment_by_name("flywheel-evaluation/demo")
    failing, wrong = (failed_run(worked, deployment.id, home) for home in (broken, tmp_path / "none"))
    tries = worked.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [failing.id]}), task_run_filter=TaskRunFilter())
    assert [(one.name, one.run_count, one.state_name) for one in tries] == [("open the home", 3, "Failed")]
    assert "not a home" in (wrong.state.message or "")
    assert worked.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [wrong.id]})) == [], "a wrong request is tried once"
    (told,) = soon(lambda: events(heard, "failed_schedule"), "somebody is told")
    assert told["home"] == str(broken) and "flywheel-evaluation failed" in told["sentence"]
    assert told["facts"]["flow_run"] == str(failing.id)


@pytest.mark.long
def test_turns_whose_budget_is_spent_end_early_and_the_next_goes_on(environment: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "poor"
    command = [FLYWHEEL, "run", "--profile", str(SMALL), "--home", str(home), "--turns", "2", "--set", "budget.hours=1e-9"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    with Lake(home, read_only=True) as lake:
        done = {one.id: one.figures for one in lake.runs("state = 'completed'")}
        left_out = {(one.item["run"], one.kind) for one in lake.failures() if one.kind == "budget_hours"}
    assert done.keys() == {"t1-synth", "t0-init", "t1-gate", "t2-synth", "t2-gate"}
    assert left_out == {(f"t{turn}-{stage}", "budget_hours") for turn in (1, 2) for stage in ("synth", "cpt")}
    assert "hours of 1e-09 are spent" in done["t1-synth"]["stopped"] and done["t1-synth"]["tasks.held_out"] > 0
    assert done["t1-gate"]["reason"] == "t1-rl is not promoted: it was not made"
    assert (home / "report.html").is_file()


@pytest.mark.engine
@pytest.mark.long
def test_a_cancelled_run_leaves_no_process_behind(environment: dict[str, str], champion: Path, heard: Path) -> None:
    served = [FLYWHEEL, "serve", "--home", str(champion), "--name", "served"]
    with get_client(sync_client=True) as client, running(served, environment):
        deployment = soon(lambda: deployment_of(client, "served", "flows.scheduled.evaluation"), "the deployment is there")
        run = client.create_flow_run_from_deployment(deployment)
        soon(lambda: {"ray::VllmEngine", "VLLM::EngineCore"} <= {name_of(process) for process in started_by(run.id)}, "an engine is up")
        left = started_by(run.id)
        assert len(left) > 5
        client.set_flow_run_state(run.id, Cancelling())
        assert taken_until_gone(left) < MOST_AFTER_CANCELLING
        with Lake(champion, read_only=True) as lake:
            assert "completed" not in {one.state for one in lake.runs("stage = 'eval'")}, "it is ended, and not waited for"
        soon(lambda: client.read_flow_run(run.id).state_name == "Cancelled", "the run is cancelled")
        assert started_by(run.id) == []
    told = [event for event in events(heard, "stopped_run") if event["facts"].get("flow_run") == str(run.id)]
    assert [event["sentence"] for event in told] == ["flywheel-evaluation was cancelled"]


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """A process that is asked to end afterwards, and must."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def background(*arguments: str, environment: dict[str, str]) -> Any:
    """One of Prefect's own commands, running."""
    return running([sys.executable, "-m", "prefect", *arguments], environment)


def soon(look: Callable[[], T | None], what: str) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {PATIENCE_SECONDS:.0f} s")


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


def failed_run(client: SyncPrefectClient, deployment: UUID, home: Path) -> FlowRun:
    """A run of the deployment for that home, when it has failed; another that came meanwhile would be cancelled."""
    run = client.create_flow_run_from_deployment(deployment, parameters={"home": str(home)})
    soon(lambda: client.read_flow_run(run.id).state_name == "Failed", "the run has failed")
    return client.read_flow_run(run.id)


def runs_of(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    return [run for run in client.read_flow_runs() if run.deployment_id == deployment]


def deployment_of(client: SyncPrefectClient, name: str, entrypoint: str) -> UUID | None:
    return next((one.id for one in client.read_deployments() if (one.name, one.entrypoint) == (name, entrypoint)), None)


def started_by(run: UUID) -> list[psutil.Process]:
    """The process of a flow run, and everything that it started."""
    mark = {"PREFECT__FLOW_RUN_ID": str(run)}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if mark.items() <= process.environ().items():
                found |= {one.pid: one for one in (process, *process.children(recursive=True))}
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return list(found.values())


def taken_until_gone(processes: list[psutil.Process]) -> float:
    """The seconds of the processor that processes take until the last has ended, as far as they were seen."""
    first: dict[psutil.Process, float] = {}
    latest: dict[psutil.Process, float] = {}

    def gone() -> bool:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                latest[process] = sum(process.cpu_times()[:2])
                first.setdefault(process, latest[process])
        return not any(process.is_running() for process in processes)

    soon(gone, "its processes are gone")
    return sum(latest.values()) - sum(first.values())


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip().split(" ")[0].partition(".")[0]
    except psutil.NoSuchProcess:
        return ""


def events(heard: Path, happening: str) -> list[dict[str, Any]]:
    """The events of one kind that were told."""
    told = [json.loads(path.read_text() or "null") for path in sorted(heard.iterdir())]
    return [event for event in told if event and event["event"] == happening]
