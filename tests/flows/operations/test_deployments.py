"""The schedules in code and in `prefect.yaml` are the same, and what they lack is told in a sentence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.server.api.server import create_app
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_API_URL,
    temporary_settings,
)

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


def test_the_next_turn_is_the_first_whose_gate_has_not_spoken() -> None:
    assert next_turn(set()) == 1
    assert next_turn({gate_id(1), gate_id(2), "t3-cpt"}) == 3
