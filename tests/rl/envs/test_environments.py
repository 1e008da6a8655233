from __future__ import annotations

import asyncio
import math

import pytest

from rl.env_pool.worker import EnvironmentWorker
from rl.envs.base import Environment, EnvironmentFault, FaultKind, Resources, Step, ToolOutcome, fault_kind, find_environment
from rl.envs.config import EnvironmentKindConfig
from rl.renderers.base import Action
from rl.retrieval.indexes import Indexes
from rl.retrieval.search import SearchIndex
from tests.rl.conftest import DOCUMENTS, TASKS
from warehouse.records import Task

INDEX = SearchIndex(DOCUMENTS)


def answer_of(environment: Environment, tool: str, arguments: str) -> Step:
    return asyncio.run(environment.step(Action(tool, arguments)))


def make(name: str, **options: object) -> Environment:
    return find_environment(name)(Resources(INDEX, options))


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "1 / 0", "__import__('os')", "9 ** 9 ** 9", "x", "True", "(-8) ** 0.5", "(-8) ** 0.5 // 2", "2 % (-8) ** 0.5", "1" * 300],
)
def test_the_calculator_refuses(expression: str) -> None:
    assert answer_of(make("calculator"), "code", expression).tool_outcome is ToolOutcome.ERROR


async def test_a_worker_keeps_trajectories_apart_and_forgets_them_at_the_end() -> None:
    worker = EnvironmentWorker("search", EnvironmentKindConfig(), Indexes(INDEX))
    for name in ("a", "b"):
        await worker.reset(name, TASKS[0], seed=0)
    await worker.step("a", Action("answer", "Green Lake"))
    with pytest.raises(EnvironmentFault, match="it is over"):
        await worker.step("a", Action("search", "Blue River"))
    assert (await worker.step("b", Action("search", "Blue River"))).tool_outcome is ToolOutcome.OK
    await worker.close("b")
    await worker.close("b")


async def test_half_of_a_surrogate_pair_is_mended_in_all_that_an_environment_says() -> None:
    worker = EnvironmentWorker("tests.rl.faulty:create", EnvironmentKindConfig(), Indexes())
    first = await worker.reset("a", Task("half", "tests.rl.faulty:create", "half", ()), seed=0)
    step = await worker.step("a", Action("spell", ""))
    with pytest.raises(EnvironmentFault) as fault:
        await worker.step("a", Action("misspell", ""))
    assert (first.text, step.observation, str(fault.value)) == ("half ? a pair", "half ? a pair", "error: half ? a pair")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_reward_that_is_no_finite_number_is_a_fault(value: float) -> None:
    config = EnvironmentKindConfig(options={"scorer": "tests.rl.envs.test_judge:Opinionated", "options": {"value": value}})
    worker = EnvironmentWorker("judge", config, Indexes())
    await worker.reset("a", TASKS[0], seed=0)
    with pytest.raises(EnvironmentFault, match=rf"the environment gave the reward {value}, which is no finite number"):
        await worker.step("a", Action("answer", "Green Lake"))


def test_the_kind_of_a_fault_is_that_of_its_cause() -> None:
    def caused_by(cause: Exception) -> Exception:
        try:
            try:
                raise cause
            except Exception as error:
                raise RuntimeError("the tool failed") from error
        except RuntimeError as error:
            return error

    assert fault_kind(caused_by(MemoryError())) is FaultKind.MEMORY
    assert fault_kind(caused_by(TimeoutError())) is FaultKind.TIMEOUT
    assert fault_kind(caused_by(EnvironmentFault("gone", FaultKind.UNREACHABLE))) is FaultKind.UNREACHABLE
    assert fault_kind(caused_by(ValueError())) is FaultKind.ERROR
