"""The schedules in code and in `prefect.yaml` are the same, and what they lack is told in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from prefect.settings import (
    PREFECT_API_URL,
    temporary_settings,
)

from flows.operations.scheduled import ENVIRONMENT, SCHEDULES, check_server, deployments
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


def test_the_next_turn_is_the_first_whose_gate_has_not_spoken() -> None:
    assert next_turn(set()) == 1
    assert next_turn({gate_id(1), gate_id(2), "t3-cpt"}) == 3
