"""Built-in environments, how they are found by name, and the worker that runs them."""

from __future__ import annotations

import asyncio
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.sandbox.sandbox import isolation
from rl.env_pool.worker import EnvironmentWorker
from rl.envs.agentgym import SERVICES
from rl.envs.base import BUILT_IN, ENVIRONMENTS, EnvironmentFault, FaultKind, Resources, ToolOutcome, fault_kind, find_environment
from rl.envs.config import EnvironmentKindConfig
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action
from rl.retrieval.indexes import Indexes
from rl.retrieval.search import SearchIndex
from synth.worlds.tool_tasks import generate_tasks
from tests.eval.graders.small_repository import FILES, HIDDEN
from tests.eval.graders.small_repository import TASK as REPAIR
from tests.rl.conftest import DOCUMENTS, TASKS
from tests.rl.envs.test_agentgym import Counting
from tests.rl.envs.test_openenv import Imitation
from tests.rl.http_server import served
from warehouse.errors import RequestError
from warehouse.records import Task


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "1 / 0", "__import__('os')", "9 ** 9 ** 9", "x", "True", "(-8) ** 0.5", "(-8) ** 0.5 // 2", "2 % (-8) ** 0.5", "1" * 300],
)
def test_the_calculator_refuses(expression: str) -> None:
    calculator = find_environment("calculator")(Resources())
    assert asyncio.run(calculator.step(Action("code", expression))).tool_outcome is ToolOutcome.ERROR


async def test_a_worker_keeps_trajectories_apart_and_forgets_them_at_the_end() -> None:
    worker = EnvironmentWorker("search", EnvironmentKindConfig(), Indexes(SearchIndex(DOCUMENTS)))
    for name in ("a", "b"):
        await worker.reset(name, TASKS[0], seed=0)
    await worker.step("a", Action("answer", "Green Lake"))
    with pytest.raises(EnvironmentFault, match="has ended"):
        await worker.step("a", Action("search", "Blue River"))
    assert (await worker.step("b", Action("search", "Blue River"))).tool_outcome is ToolOutcome.OK
    await worker.close("b")
    await worker.close("b")


async def test_lone_surrogates_from_an_environment_are_replaced() -> None:
    worker = EnvironmentWorker("tests.rl.faulty:create", EnvironmentKindConfig(), Indexes())
    first = await worker.reset("a", Task("half", "tests.rl.faulty:create", "half", ()), seed=0)
    step = await worker.step("a", Action("spell", ""))
    with pytest.raises(EnvironmentFault) as fault:
        await worker.step("a", Action("misspell", ""))
    assert (first.text, step.observation, str(fault.value)) == ("half ? a pair", "half ? a pair", "error: half ? a pair")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_non_finite_reward_is_a_fault(value: float) -> None:
    config = EnvironmentKindConfig(options={"scorer": "tests.rl.envs.test_judge:Opinionated", "options": {"value": value}})
    worker = EnvironmentWorker("judge", config, Indexes())
    await worker.reset("a", TASKS[0], seed=0)
    with pytest.raises(EnvironmentFault, match=rf"the reward {value}"):
        await worker.step("a", Action("answer", "Green Lake"))


def test_the_kind_of_a_fault_is_that_of_its_cause() -> None:
    def caused_by(cause: Exception) -> Exception:
        error = RuntimeError("the tool failed")
        error.__cause__ = cause
        return error

    causes = (MemoryError(), TimeoutError(), EnvironmentFault("gone", FaultKind.UNREACHABLE), ValueError())
    kinds = [fault_kind(caused_by(cause)) for cause in causes]
    assert kinds == [FaultKind.MEMORY, FaultKind.TIMEOUT, FaultKind.UNREACHABLE, FaultKind.ERROR]


def write_shop(folder: Path) -> dict[str, Any]:
    """Write the repository into `folder`; the provenance of the task to mend it."""
    for name, content in FILES.items():
        (folder / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "shop" / name).write_bytes(content)
    hidden = {name: content.decode() for name, content in HIDDEN.items()}
    return {"snapshot": "shop", "fail_to_pass": REPAIR.fail_to_pass, "pass_to_pass": REPAIR.pass_to_pass, "test_files": hidden}


@pytest.fixture
def beginnings(tmp_path: Path) -> Iterator[dict[str, tuple[dict[str, Any], dict[str, Any]]]]:
    """The options that an environment wants to begin a trajectory, and the provenance of its task, where it wants any."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "tools.toml").write_text('[tools.work_out]\nfunction = "rl.envs.code:calculate"')
    with (
        served(Counting(SERVICES["textcraft"], shows_at_reset=True).application) as url,
        served(Imitation().application) as sessions,
    ):
        yield {
            "tools": ({"file": tmp_path / "tools.toml"}, {}),
            "retrieve": ({"url": url}, {}),
            "tool_world": ({}, next(generate_tasks(1, seed=11)).provenance),
            "judge": ({"scorer": "tests.rl.envs.test_judge:Opinionated", "options": {"value": 1}, "drafts": 1}, {}),
            "openenv": ({"url": sessions}, {"reset": {"start": 5}}),
            "agentgym": ({"url": url, "service": "textcraft"}, {"item": 5}),
            "repository": ({"folder": tmp_path}, write_shop(tmp_path)),
            "harbor": ({"folder": tmp_path}, {"snapshot": "shop", "workdir": "/app", "variables": {}}),
        }


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - {"none"}))
async def test_every_built_in_environment_shows_the_policy_its_tools_at_the_beginning(
    name: str, beginnings: dict[str, tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    if name in ("python", "repository", "harbor") and not isolation().granted:
        pytest.skip(f"no sandbox here: {isolation().detail}")
    options, provenance = beginnings.get(name, ({}, {}))
    environment = find_environment(name)(Resources(SearchIndex(DOCUMENTS), options))
    assert isinstance(environment, ToolEnvironment)
    first = await environment.reset(Task("t", name, "?", (), provenance=provenance), 0)
    assert first.tools == tuple(environment.schemas) != ()
    await environment.close()


def test_an_entry_point_that_two_packages_claim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mazes", "more_mazes"):
        information = tmp_path / f"{name}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[{ENVIRONMENTS.group}]\nmaze = rl.envs.{name}:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestError, match="several installed packages have environment 'maze'"):
        find_environment("maze")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.py:create", "names a file that does not exist"),
        ("broken.py:create", "cannot be imported"),
        ("whole.py:nothing", "cannot be imported"),
        ("chess", "there is no environment 'chess'"),
    ],
)
def test_missing_environments_are_refused(name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("def create(:\n")
    (tmp_path / "whole.py").write_text("something = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=reason):
        find_environment(name)
    assert not [module for module in sys.modules if module.startswith("file_broken")]


PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
TASK = Task("t", "guess", "Guess the number.", (), provenance={"below": 100})


async def test_the_documented_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(# guess\.py\n.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "guess.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    environment = find_environment("guess.py:create")(Resources(options={"reward": 2.0}))
    assert (await environment.reset(TASK, seed=142)).text == "The number is below 100."
    steps = [await environment.step(Action("guess", f'{{"number": {number}}}')) for number in (-1, 20, 80, 42)]
    assert [step.observation for step in steps] == ["Error: the number is at least 0", "Higher.", "Lower.", "Yes."]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * 3 + [(2.0, True)]
