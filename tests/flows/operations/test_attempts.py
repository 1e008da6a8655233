"""A stage is tried again after a fault, with new engines, and never after a wrong request."""

from __future__ import annotations

from pathlib import Path

import duckdb
import httpx
import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from flows.home import HomeBusy
from flows.operations.budgets import BudgetSpent
from flows.pipeline import is_fault
from rl.engines.base import EngineFault
from rl.env_pool.circuit_breaker import CircuitOpen
from rl.worker_death import WorkerDied
from warehouse.errors import RequestError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        TimeoutError("hung"),
        EngineFault("out of memory"),
        WorkerDied("an engine", "by SIGKILL"),
        ActorDiedError(),
        RayTaskError("step", "trace", ValueError("inside")),
        httpx.ConnectError("refused"),
        duckdb.IOException("database is locked"),
    ],
)
def test_what_a_machine_did_is_a_fault(error: Exception) -> None:
    assert is_fault(error)


@pytest.mark.parametrize(
    "error",
    [
        RequestError("no such suite"),
        HomeBusy("in use"),
        BudgetSpent("spent"),
        CircuitOpen("the environment is down"),
        PermissionError(13, "not yours"),
        duckdb.BinderException("no such column"),
        KeyError("a bug"),
    ],
)
def test_a_wrong_request_a_sign_of_health_and_a_bug_are_none(error: Exception) -> None:
    assert not is_fault(error)


def test_a_lake_whose_catalogue_is_gone_bad_is_a_fault_of_the_disk(tmp_path: Path) -> None:
    from warehouse import Lake

    Lake(tmp_path).close()
    catalogue = tmp_path / "lake" / "catalog.sqlite"
    catalogue.write_bytes(b"\0" * catalogue.stat().st_size)
    with pytest.raises(duckdb.Error) as found:
        Lake(tmp_path)
    assert is_fault(found.value)
