"""The schedules in code and in `prefect.yaml` are the same, and what they lack is told in a sentence."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.server.api.server import create_app
from prefect.server.concurrency.lease_storage import ConcurrencyLimitLeaseMetadata, get_concurrency_lease_storage
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE,
    temporary_settings,
)

from flows.operations.events import headline
from flows.operations.scheduled import ENVIRONMENT, SCHEDULES, check_owner, check_server, deployments
from flows.plan import gate_id, next_turn
from warehouse.errors import RequestError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_the_file_says_what_the_code_says(tmp_path: Path) -> None:
    told = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    made = deployments(tmp_path, "demo", {}, pool="pool")
    assert [one["entrypoint"] for one in told] == [one.entrypoint for one in made]
    assert [one["schedules"] for one in told] == [[{"cron": schedule.cron, "timezone": "UTC"}] for schedule in SCHEDULES]
    for one, deployment in zip(told, made, strict=True):
        assert one["concurrency_limit"] == {"limit": deployment.concurrency_limit, "collision_strategy": "CANCEL_NEW"}
        assert one["tags"] == deployment.tags == ["flywheel"]
        assert one["parameters"].keys() == deployment.parameters.keys()
        assert one["work_pool"]["job_variables"] == deployment.job_variables == {"env": ENVIRONMENT}


def test_times_may_be_others_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    made = {one.flow_name: one for one in deployments(tmp_path, "demo", {"turn": "0 22 * * 5"})}
    assert made["flywheel-turn"].schedules[0].schedule.cron == "0 22 * * 5"
    assert made["flywheel-turn"].parameters == {"home": str(tmp_path)}
    with pytest.raises(RequestError, match="'noon' is no time for turn"):
        deployments(tmp_path, "demo", {"turn": "noon"})
    with pytest.raises(RequestError, match="no schedule 'nap'; choose one of turn"):
        deployments(tmp_path, "demo", {"nap": "0 1 * * *"})


def test_no_server_and_one_that_does_not_answer_are_one_sentence() -> None:
    with temporary_settings({PREFECT_API_URL: None}), pytest.raises(RequestError, match="prefect server start"):
        check_server()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}), pytest.raises(RequestError, match="no Prefect server answers at"):
        check_server()


class ServerHere:
    """A Prefect server in this process, asked as its synchronous client asks."""

    def create(self, deployment: RunnerDeployment) -> None:
        async def work() -> None:
            async with PrefectClient(create_app(ephemeral=True)) as client:
                flow_id = await client.create_flow_from_name(deployment.flow_name)
                await client.create_deployment(flow_id, deployment.name, parameters=deployment.parameters)

        asyncio.run(work())

    def read_deployment_by_name(self, name: str) -> DeploymentResponse:
        async def work() -> DeploymentResponse:
            async with PrefectClient(create_app(ephemeral=True)) as client:
                return await client.read_deployment_by_name(name)

        return asyncio.run(work())


@pytest.mark.long
def test_schedules_of_another_home_are_not_taken(tmp_path: Path) -> None:
    mine, others = (deployments(tmp_path / owner / "demo", "demo", {})[:1] for owner in ("anna", "bert"))
    database = {PREFECT_API_URL: None, PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{tmp_path}/prefect.db"}
    with temporary_settings(database):
        server = ServerHere()
        check_owner(server, mine)
        server.create(mine[0])
        check_owner(server, mine)
        with pytest.raises(RequestError, match=r"flywheel-turn/demo for the home \S+/anna/demo: give this one's another name with --name"):
            check_owner(server, others)


async def test_a_server_that_is_started_again_knows_the_leases_where_they_are_kept_as_the_page_says(tmp_path: Path) -> None:
    _, kept_in = re.findall(
        r"^export (PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE)=(\S+)", (ROOT / "docs" / "operations.md").read_text(), re.M
    )[0]
    with temporary_settings({PREFECT_HOME: tmp_path, PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE: kept_in}):
        lease = await get_concurrency_lease_storage().create_lease([uuid4()], timedelta(0), ConcurrencyLimitLeaseMetadata(slots=1))
        assert await get_concurrency_lease_storage().read_expired_lease_ids() == [lease.id]
    assert (tmp_path / "concurrency_leases" / f"{lease.id}.json").is_file()


def test_the_next_turn_is_the_first_whose_gate_has_not_spoken() -> None:
    assert next_turn(set()) == 1
    assert next_turn({gate_id(1), gate_id(2), "t3-cpt"}) == 3


def test_the_figure_that_matters_stands_first() -> None:
    success = {"success": 0.984, "low": 0.974, "high": 0.99, "tasks": 1000, "invalid": 0}
    assert headline("eval", {"held_out.all": success, "held_out.1": success}) == "held_out: 98.4 % (97.4–99.0) of 1000"
    assert headline("rl", {"reward": 0.5, "loss": 0.1}) == "reward 0.5"
    assert headline("gate", {"promoted": False, "reason": "it is not better"}) == "it is not better"
    assert headline("synth", {"tasks.train": 40, "examples.has": 3, "examples.document": 7}) == "40 tasks to train on, 10 examples"
    assert headline("cpt", {"stopped": "t1-cpt stops: 1 hours of 1 are spent", "loss": 1.0}).startswith("t1-cpt stops")
