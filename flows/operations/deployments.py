"""The deployments: which flow runs when, for one home. `prefect.yaml` says the same for `prefect deploy`.

Prefect is told the path of a flow's module, so whoever runs it needs the package installed, and no copy of the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import DeploymentApplyError, RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.settings import PREFECT_API_URL
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from flows.operations.scheduled import compaction, evaluation, synthesis, turn
from warehouse.errors import RequestError

ENVIRONMENT = {"PREFECT_LOGGING_EXTRA_LOGGERS": "flywheel"}
"""What a flow's process has in its environment, so that our lines stand in Prefect's log of the run."""

ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
"""A run that is due while the one before it is under way is cancelled: there would be nothing left for it to do."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A flow and the times it runs at, in the form of cron and in UTC."""

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
    """The deployments of a home under `name`; `crons` has other times for some of the schedules.

    Raises:
        RequestError: there is no such schedule, or a time is no cron expression.
    """
    unknown = sorted(crons.keys() - {schedule.name for schedule in SCHEDULES})
    if unknown:
        raise RequestError(f"there is no schedule {unknown[0]!r}; choose one of {', '.join(schedule.name for schedule in SCHEDULES)}.")
    return [_deployment(schedule, home, name, crons.get(schedule.name, schedule.cron), pool) for schedule in SCHEDULES]


def serve_here(found: list[RunnerDeployment]) -> None:
    """Register the deployments and run them on this machine, each run in a process of its own, until this process is asked to end.

    Raises:
        RequestError: no Prefect server is reachable.
    """
    check_server()
    serve(*found)


def register(found: list[RunnerDeployment], pool: str) -> list[str]:
    """Register the deployments in a work pool and return their names; who runs them is the pool's matter.

    Raises:
        RequestError: no Prefect server is reachable, or it has no such pool.
    """
    check_server()
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound as error:
            raise RequestError(
                f"there is no work pool {pool!r}; make one with `prefect work-pool create {pool} --type process`, or name another."
            ) from error
    for deployment in found:
        try:
            deployment.apply(work_pool_name=pool)
        except DeploymentApplyError as error:
            raise RequestError(f"the server does not take {deployment.full_name}: {error}") from error
    return [deployment.full_name for deployment in found]


def check_server() -> str:
    """The address of the Prefect server. Raises RequestError where none is named, or it does not answer."""
    address = PREFECT_API_URL.value()
    if not address:
        raise RequestError(
            "schedules need a Prefect server and none is named: start one with `prefect server start`, "
            "and name it with `export PREFECT_API_URL=http://127.0.0.1:4200/api`."
        )
    with get_client(sync_client=True) as client:
        fault = client.api_healthcheck()
    if fault is not None:
        raise RequestError(
            f"no Prefect server answers at {address} ({type(fault).__name__}): start it with `prefect server start`, "
            "or name another in PREFECT_API_URL."
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
        raise RequestError(f"{cron!r} is no time for {schedule.name}: write it as cron does, for example '0 1 * * *'.") from error
