"""Environment workers on a real Ray, and the calls that clients send them in batches."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from flows.cli import exit_status
from rl.env_pool.batched_actor import BatchedActor, BatchedActorClient, CallFailed, NotPicklable
from rl.env_pool.circuit_breaker import CircuitBreaker, environment, tool
from rl.env_pool.pool import EnvironmentPool
from rl.envs.base import EnvironmentFault, FaultKind
from rl.envs.config import EnvironmentPoolConfig
from rl.ray_runtime import RayConfig, RayRuntime
from rl.renderers.base import Action
from rl.retrieval.indexes import build_indexes
from rl.worker_death import WorkerDied
from tests.rl.conftest import DOCUMENTS
from warehouse.errors import RequestError
from warehouse.records import Task

pytestmark = pytest.mark.engine


class Awkward(Exception):
    """An exception that can be written and not read."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("awkward")


class Clerk(BatchedActor):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.messages = 0

    async def run_calls(self, calls: Any) -> None:
        self.messages += 1
        await super().run_calls(calls)

    async def double(self, number: int, seconds: float = 0.0) -> int:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.told.append(f"cancelled {number}")
            raise
        return 2 * number

    async def note(self, text: str) -> None:
        self.told.append(text)

    async def read(self) -> tuple[list[str], int]:
        return self.told, self.messages

    async def go_wrong(self, how: str) -> Any:
        if how == "plain":
            raise ValueError("no")
        if how == "awkward":
            raise Awkward(1, 2)
        return threading.Lock()


@pytest.fixture(scope="module")
def runtime() -> Iterator[RayRuntime]:
    started = RayRuntime(RayConfig(), cpus=4)
    yield started
    started.close()


@pytest.fixture(scope="module")
def client(runtime: RayRuntime) -> BatchedActorClient:
    """The last of its tests kills the actor."""
    return BatchedActorClient(ray.remote(Clerk).options(num_cpus=0.1, max_concurrency=1000).remote())


async def test_a_thousand_calls_get_their_own_answers_in_few_messages(client: BatchedActorClient) -> None:
    numbers = await asyncio.gather(*(client.call("double", number) for number in range(1000)))
    assert numbers == [2 * number for number in range(1000)]
    assert (await client.call("read"))[1] < 20


async def test_slow_and_failing_calls_do_not_delay_others(client: BatchedActorClient) -> None:
    slow = asyncio.ensure_future(client.call("double", 1, 60.0))
    failing = [client.call("go_wrong", how) for how in ("plain", "awkward", "lock")]
    plain, awkward, lock = await asyncio.gather(*failing, return_exceptions=True)
    assert isinstance(plain, CallFailed) and repr(plain.cause) == "ValueError('no')"
    for named, failed in (("Awkward", awkward), ("lock", lock)):
        assert isinstance(failed, CallFailed) and isinstance(failed.cause, NotPicklable) and named in str(failed.cause)
    assert await client.call("double", 4) == 8
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    client.send("note", "goodbye")
    while (await client.call("read"))[0] != ["cancelled 1", "goodbye"]:
        await asyncio.sleep(0.01)


async def test_callers_of_a_killed_actor_get_an_error(client: BatchedActorClient) -> None:
    waiting = [asyncio.ensure_future(client.call("double", number, 60.0)) for number in range(3)]
    assert await client.call("double", 2) == 4
    ray.kill(client._actor)
    assert all(isinstance(error, RayActorError) for error in await asyncio.gather(*waiting, return_exceptions=True))
    with pytest.raises(RayActorError):
        await client.call("double", 1)


FAULTY = "tests.rl.faulty:create"
KINDS = {
    FAULTY: {"options": {"seconds": 30}},
    "hasty": {"factory": FAULTY, "step_timeout_seconds": 1.0, "options": {"seconds": 30}},
    "tight": {"factory": FAULTY, "memory_gib": 0.25},
    "roomy": {"factory": FAULTY},
    "killed": {"factory": f"{FAULTY}_deadly", "options": {"signal": "SIGKILL"}},
    "crashed": {"factory": f"{FAULTY}_deadly", "options": {"signal": "SIGSEGV"}},
    "dead": {"factory": FAULTY, "options": {"dead": True}},
    "wide": {"factory": "search", "workers": 2, "options": {"documents": 2}},
    "greedy": {"factory": "search", "gpus": 8},
    "misspelt": {"factory": "search", "options": {"document": 2}},
}


@pytest.fixture(scope="module")
def started(runtime: RayRuntime) -> Iterator[EnvironmentPool]:
    """One pool for all: a worker takes seconds to start."""
    pool = EnvironmentPool(EnvironmentPoolConfig.model_validate({"kinds": KINDS, "cpus": 0.1}), build_indexes(DOCUMENTS))
    yield pool
    pool.close()


@pytest.fixture
def pool(started: EnvironmentPool) -> EnvironmentPool:
    """The pool with a circuit breaker that has seen nothing yet."""
    started.breaker = CircuitBreaker(window=4, max_share=0.5)
    return started


def task(question: str, environment: str = FAULTY) -> Task:
    return Task(question, environment, question, ())


async def fault_of(pool: EnvironmentPool, name: str, question: str, *actions: Action) -> EnvironmentFault:
    """The fault that a trajectory ends with."""
    client = pool.client(name, f"{name}-{question}")
    try:
        await client.reset(task(question, name), 0)
        for action in actions:
            await client.step(action)
    except EnvironmentFault as fault:
        return fault
    finally:
        await client.close()
    raise AssertionError("nothing went wrong")


async def test_each_kind_has_its_own_workers_and_options(pool: EnvironmentPool) -> None:
    for name, count in (("wide", 2), ("search", 1)):
        await pool.open(name)
        assert len(pool._kinds[name].workers) == count
        client = pool.client(name, "t")
        await client.reset(task("?", name), 0)
        assert (await client.step(Action("search", "Blue River"))).observation.count("\n") == count - 1


async def test_a_worker_that_is_stuck_is_replaced(pool: EnvironmentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.env_pool.pool.HUNG_SECONDS", 0.5)
    await pool.open("hasty")
    stuck = await fault_of(pool, "hasty", "block")
    assert stuck.kind is FaultKind.TIMEOUT
    after = pool.client("hasty", "after")
    assert (await after.reset(task("none"), 0)).text == "Look around."


async def test_a_worker_cannot_allocate_more_than_its_limit_and_is_replaced(pool: EnvironmentPool) -> None:
    await pool.open("tight")
    fine = pool.client("tight", "fine")
    await fine.reset(task("none"), 0)
    assert (await fine.step(Action("allocate", "0.05"))).observation == "Nothing happens."
    over = await fault_of(pool, "tight", "none", Action("allocate", "0.5"))
    assert over.kind is FaultKind.MEMORY
    with pytest.raises(EnvironmentFault, match=r"^memory: "):
        await fine.step(Action("allocate", "0.01"))
    after = pool.client("tight", "after")
    await after.reset(task("none"), 0)
    assert (await after.step(Action("allocate", "0.05"))).observation == "Nothing happens."


async def test_what_cannot_be_made_is_refused_before_the_first_step(pool: EnvironmentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, reason in (("dead", "'dead' .*the world is not there"), ("misspelt", "the option 'document'"), ("chess", "'chess'")):
        with pytest.raises(RequestError, match=reason):
            await pool.open(name)
    monkeypatch.setattr("rl.env_pool.pool.START_SECONDS", 2.0)
    with pytest.raises(RequestError, match=r"each needs 0\.1 CPUs and 8 GPUs"):
        await pool.open("greedy")
    assert not {"dead", "misspelt", "chess", "greedy"} & pool._kinds.keys()


@pytest.mark.parametrize(("name", "how"), [("killed", "by SIGKILL"), ("crashed", "by SIGSEGV")])
async def test_a_worker_that_dies_at_start_is_a_fault_and_not_a_request_error(pool: EnvironmentPool, name: str, how: str) -> None:
    with pytest.raises(WorkerDied) as died:
        await pool.open(name)
    assert repr(name) in str(died.value) and how in str(died.value) and "the last words" in died.value.log
    assert exit_status(died.value) == 1
    assert name not in pool._kinds


async def test_a_task_cannot_run_code_outside_the_configuration(pool: EnvironmentPool, tmp_path: Path) -> None:
    """Tasks come from anywhere; what runs is what the configuration names."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\ndef create(resources): ...\n")
    for name in (f"{tmp_path / 'evil.py'}:create", "os:system"):
        with pytest.raises(RequestError, match="code that the configuration does not list"):
            await pool.open(name)
    assert not (tmp_path / "trace").exists()


async def kill_worker(pool: EnvironmentPool, name: str) -> None:
    """Kill the one worker of a kind without warning."""
    (worker,) = pool._kinds[name].workers
    os.kill(await worker.actor.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)


async def test_a_trajectory_knows_whether_it_may_have_killed_its_worker(pool: EnvironmentPool) -> None:
    await pool.open(FAULTY)
    acting, thinking = (pool.client(FAULTY, name) for name in ("acting", "thinking"))
    await asyncio.gather(*(client.reset(task("none"), 0) for client in (acting, thinking)))
    await kill_worker(pool, FAULTY)
    for client in (acting, thinking):
        with pytest.raises(EnvironmentFault, match="worker died"):
            await client.step(Action("look", ""))
    assert [(client.lost, client.suspect) for client in (acting, thinking)] == [(True, True), (True, False)]
    broken = pool.client(FAULTY, "broken")
    with pytest.raises(EnvironmentFault, match="world broke"):
        await broken.reset(task("raise"), 0)
    assert (broken.lost, broken.suspect) == (False, False)


async def test_the_breaker_counts_a_dead_worker_once(pool: EnvironmentPool) -> None:
    await pool.open(FAULTY)
    clients = [pool.client(FAULTY, f"t{place}") for place in range(6)]
    await asyncio.gather(*(client.reset(task("none"), 0) for client in clients))
    await kill_worker(pool, FAULTY)
    ends = await asyncio.gather(*(client.step(Action("look", "")) for client in clients), return_exceptions=True)
    assert [end.kind for end in ends if isinstance(end, EnvironmentFault)] == [FaultKind.DIED] * 6
    for client in clients:
        await client.close()
    assert pool.breaker.faults(environment(FAULTY)) == pool.breaker.faults(tool("look")) == 1
