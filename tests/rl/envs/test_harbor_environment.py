"""A Harbor task from its folder to a reward: imported, proven, played with the shell, judged by its own tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.sandbox.sandbox import isolation
from flows.config import load_config
from flows.home import Home, with_repositories
from rl.envs.base import EnvironmentFault, Resources, ToolOutcome, find_environment
from rl.renderers.base import Action
from tests.flows.homes import flywheel
from warehouse import Lake

pytestmark = [pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}"), pytest.mark.slow]

FILES = {
    "task.toml": 'version = "1.0"\n[environment]\ngpus = 0\n',
    "instruction.md": "Write done into state.txt.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nCOPY state.txt .\n",
    "environment/state.txt": "begun",
    "tests/test.sh": "grep -q broken state.txt || (grep -q done state.txt; echo $((1 - $?)) > /logs/verifier/reward.txt)\n",
    "solution/solve.sh": "printf done > state.txt\n",
}


def write(folder: Path, **changed: str) -> None:
    for name, text in {**FILES, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


async def test_a_task_goes_from_its_folder_to_a_reward(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(tmp_path / "tasks" / "good")
    write(tmp_path / "tasks" / "unsolved", **{"solution/solve.sh": "exit 1\n"})
    write(tmp_path / "tasks" / "gpu", **{"task.toml": "[environment]\ngpus = 1\n"})
    flywheel("import", "tasks", tmp_path / "tasks", "--home", home)
    shown = flywheel("sql", "SELECT kind, reason FROM failures ORDER BY kind", "--home", home, "--format", "json")
    assert [(row["kind"], row["reason"].partition(":")[0]) for row in json.loads(shown)] == [
        ("not_proven", "unsolved, line 3"),
        ("unsupported", "gpu"),
    ]
    with Lake(home, read_only=True) as lake:
        (task,) = lake.tasks()
    made = find_environment("harbor")(Resources(options={"folder": Home(home).repositories}))
    assert [tool["function"]["name"] for tool in (await made.reset(task, 0)).tools] == ["shell"]
    assert (await made.step(Action("shell", "cat state.txt; ls /tests"))).observation == "begun"
    failed = await made.step(Action("shell", "printf doing > state.txt; false"))
    assert (failed.tool_outcome, failed.observation) == (ToolOutcome.ERROR, "Error: (status 1)")
    assert (await made.step(Action("answer", "done"))).reward == 0
    await made.reset(task, 0)
    await made.step(Action("shell", "printf done > state.txt"))
    assert (await made.step(Action("answer", "done"))).reward == 1
    await made.reset(task, 0)
    await made.step(Action("shell", "printf broken > state.txt"))
    with pytest.raises(EnvironmentFault, match="wrote no reward"):
        await made.step(Action("answer", "done"))


def test_a_home_s_own_snapshots_are_the_default_folder(tmp_path: Path) -> None:
    home, config = Home(tmp_path), load_config("quickstart", ["rollout.environments.kinds.harbor.options.folder=elsewhere"])
    assert with_repositories(config, home) == config
    home.repositories.mkdir()
    environments = with_repositories(config, home).rollout.environments
    assert [environments.kind(name).options["folder"] for name in ("repository", "harbor")] == [str(home.repositories), "elsewhere"]
