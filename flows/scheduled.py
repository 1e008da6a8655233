"""Scheduled flows: an iteration, synthesis ahead of it, re-evaluation of the champion, and lake upkeep.

Prefect starts a process per run. When a run is cancelled, engines and Ray have a few seconds to end before they are killed. A run that
finds the home busy waits or skips.

The deployments below schedule the flows for one home, as `prefect.yaml` does for `prefect deploy`. They reference flows by module, so
workers need the package installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from prefect import flow, runtime, serve, tags
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, FlowRun, State
from prefect.deployments.runner import DeploymentApplyError, RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.settings import PREFECT_API_URL
from prefect.types.entrypoint import EntrypointType
from pydantic import NonNegativeFloat, PositiveFloat, ValidationError

from flows.home import Home, HomeBusy
from flows.lakes import open_to_keep
from flows.operations.events import Event, notify
from flows.operations_config import BudgetConfig, EventKind
from flows.pipeline import evaluation_flow, open_home, synthesis_flow, wheel_flow
from flows.plan import completed, next_turn
from flows.runtime import cancel_exit, import_safely, quiet_libraries, start_reaper
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

HOURS = 3600.0

ENVIRONMENT = {"PREFECT_LOGGING_EXTRA_LOGGERS": "flywheel"}
"""Environment that sends our log lines to Prefect's log of the run."""

ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
"""Cancels a run that is due while the previous one is still running."""


def notify_failed(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect hook: a scheduled run failed after its last attempt, or its process died."""
    _notify(EventKind.failed_schedule, flow, flow_run, f"{flow.name} failed: {state.message or state.name}")


def notify_cancelled(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect hook: a scheduled run was cancelled."""
    _notify(EventKind.stopped_run, flow, flow_run, f"{flow.name} was cancelled")


def _notify(kind: EventKind, flow: Flow[..., Any], run: FlowRun, sentence: str) -> None:
    """Send the event as the home's configuration says, if it is a home."""
    home = Path(run.parameters["home"])
    event = Event(kind, home, run.name, sentence, {"flow": flow.name, "flow_run": str(run.id), "parameters": run.parameters})
    try:
        config = Home(home).load().events
    except RequestError as error:
        log.warning("no hook is run for «%s»: %s", sentence, error)
        return
    with ExitStack() as stack:
        try:
            lake = stack.enter_context(open_to_keep(home))
        except (RequestError, duckdb.Error) as error:
            log.warning("failed hooks will not be recorded: %s", error)
            lake = None
        notify(event, config, lake)


HOOKS: dict[str, Any] = {"on_failure": [notify_failed], "on_crashed": [notify_failed], "on_cancellation": [notify_cancelled]}


@flow(name="flywheel-turn", description="The next iteration, or the one in progress.", **HOOKS)
def turn(home: Path, budget: BudgetConfig | None = None, patience_hours: NonNegativeFloat = 12.0) -> int:
    """Run the pipeline to its next gate within `budget` (default: the home's). Return the iteration's number.

    Waits up to `patience_hours` for another process that uses the home.
    """
    with unattended():
        number = next_turn(completed(Home(home)))
        wheel_flow(home=home, turns=number, budget=budget, patience_seconds=patience_hours * HOURS)
        return number


@flow(name="flywheel-synthesis", description="As much of the next turn's synthesis as the allowance permits.", **HOOKS)
def synthesis(home: Path, allowance: BudgetConfig | None = None) -> str:
    """Synthesize questions and examples of the next iteration within `allowance`, by default 15 minutes.

    Does nothing if another process uses the home, since that process makes them itself.
    """
    with unattended():
        try:
            synthesis_flow(home=home, turn=next_turn(completed(Home(home))), allowance=allowance or BudgetConfig(hours=0.25))
        except HomeBusy as busy:
            log.info("passed by: %s", busy)
            return "passed by"
        return "done"


@flow(name="flywheel-evaluation", description="The promoted policy on every suite once more.", **HOOKS)
def evaluation(home: Path, patience_hours: NonNegativeFloat = 12.0) -> str:
    """Re-evaluate the champion on every reported suite, with the ISO week as occasion. Return its id, or `no champion`."""
    with unattended(), open_home(home, patience_hours * HOURS) as context:
        champion = context.champion()
        if champion is None:
            log.info("nothing to do: no policy is promoted yet")
            return "no champion"
        for suite in context.config.evaluation.suites:
            evaluation_flow(home=home, policy=champion.id, suite=suite, occasion=week_of(runtime.flow_run.scheduled_start_time))
        return champion.id


@flow(name="flywheel-compaction", description="Small files of the lake merged, old snapshots forgotten.", **HOOKS)
def compaction(home: Path, retain_days: PositiveFloat | None = None) -> dict[str, float]:
    """Merge the lake's small files while others read and write. With `retain_days`, expire older snapshots first."""
    from warehouse.upkeep import compact, expire_snapshots

    with unattended(), open_to_keep(home) as lake:
        forgotten = expire_snapshots(lake, timedelta(days=retain_days)) if retain_days is not None else 0
        compact(lake)
        sizes = "SELECT sum(file_count)::BIGINT AS files, sum(file_size_bytes)::DOUBLE / 1e6 AS megabytes FROM ducklake_table_info('lake')"
        (figures,) = lake.query(sizes).to_pylist()
    figures = {**figures, "snapshots_forgotten": forgotten}
    headline = f"**{figures['files']} files, {figures['megabytes']:.1f} MB** in `{home}`"
    create_table_artifact([figures], key="compaction", description=headline)
    return figures


def week_of(moment: datetime) -> str:
    """Return the ISO week of a moment, such as 2026-W47."""
    year, week, _ = moment.isocalendar()
    return f"{year}-W{week:02d}"


@contextmanager
def unattended() -> Iterator[None]:
    """Set up an unattended process: quiet libraries, safe imports, logs in Prefect, and a reaper for child processes."""
    quiet_libraries()
    import_safely()
    log.setLevel(logging.INFO)
    start_reaper()
    try:
        with tags("flywheel"):
            yield
    finally:
        cancel_exit()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A flow with its cron schedule in UTC."""

    name: str
    flow: Flow[..., Any]
    cron: str


SCHEDULES = (
    Schedule("turn", turn, "0 1 * * *"),
    Schedule("synthesis", synthesis, "15 * * * *"),
    Schedule("evaluation", evaluation, "0 12 * * 0"),
    Schedule("compaction", compaction, "45 0 * * *"),
)


def deployments(home: Path, name: str, crons: Mapping[str, str], pool: str | None = None) -> list[RunnerDeployment]:
    """Return a home's deployments under `name`, with times from `crons`. Raise RequestError for an unknown schedule or invalid cron."""
    unknown = sorted(crons.keys() - {schedule.name for schedule in SCHEDULES})
    if unknown:
        raise RequestError(f"there is no schedule {unknown[0]!r}; choose one of {', '.join(schedule.name for schedule in SCHEDULES)}.")
    return [_deployment(schedule, home, name, crons.get(schedule.name, schedule.cron), pool) for schedule in SCHEDULES]


def serve_here(found: list[RunnerDeployment]) -> None:
    """Register the deployments and run them on this machine until this process ends, each run in its own process.

    Raises:
        RequestError: No Prefect server is reachable, or another home has deployments of these names.
    """
    check_server()
    with get_client(sync_client=True) as client:
        check_owner(client, found)
    serve(*found)


def register(found: list[RunnerDeployment], pool: str) -> list[str]:
    """Register the deployments in a work pool and return their names.

    Raises:
        RequestError: No Prefect server is reachable, it has no such pool, or another home has deployments of these names.
    """
    check_server()
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound as error:
            raise RequestError(
                f"there is no work pool {pool!r}; create one with `prefect work-pool create {pool} --type process`, or choose another."
            ) from error
        check_owner(client, found)
    for deployment in found:
        try:
            deployment.apply(work_pool_name=pool)
        except DeploymentApplyError as error:
            raise RequestError(f"the server rejected {deployment.full_name}: {error}") from error
    return [deployment.full_name for deployment in found]


def check_owner(client: SyncPrefectClient, found: list[RunnerDeployment]) -> None:
    """Raise RequestError if the server has one of the deployments for another home."""
    for deployment in found:
        try:
            known = client.read_deployment_by_name(deployment.full_name)
        except ObjectNotFound:
            continue
        owner = known.parameters.get("home")
        if owner != deployment.parameters["home"]:
            raise RequestError(
                f"the server already has {deployment.full_name} for the home {owner}: choose another name with --name NAME, or, if that "
                f"home no longer exists, delete it with `prefect deployment delete {deployment.full_name}`."
            )


def check_server() -> str:
    """Return the address of the Prefect server. Raise RequestError if none is configured or it does not answer."""
    address = PREFECT_API_URL.value()
    if not address:
        raise RequestError(
            "schedules need a Prefect server, and none is set: start one with `prefect server start`, "
            "and set it with `export PREFECT_API_URL=http://127.0.0.1:4200/api`."
        )
    with get_client(sync_client=True) as client:
        fault = client.api_healthcheck()
    if fault is not None:
        raise RequestError(
            f"no Prefect server answers at {address} ({type(fault).__name__}): start it with `prefect server start`, "
            "or set another in PREFECT_API_URL."
        )
    return address


def _deployment(schedule: Schedule, home: Path, name: str, cron: str, pool: str | None) -> RunnerDeployment:
    try:
        return RunnerDeployment.from_flow(
            schedule.flow,
            name=name,
            cron=cron,
            paused=False,
            parameters={"home": str(home.resolve())},
            tags=["flywheel"],
            concurrency_limit=ONE_AT_A_TIME,
            entrypoint_type=EntrypointType.MODULE_PATH,
            job_variables={"env": ENVIRONMENT} if pool is not None else None,
        )
    except ValidationError as error:
        raise RequestError(f"{cron!r} is not a cron expression for {schedule.name}: write for example '0 1 * * *'.") from error
