from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.sandbox.sandbox import isolation
from rl.envs.agentgym import SERVICES
from rl.envs.base import BUILT_IN, ENVIRONMENTS, Resources, find_environment
from rl.envs.tool_use import ToolEnvironment
from rl.retrieval.search import SearchIndex
from synth.worlds.tool_tasks import generate_tasks
from tests.eval.graders.small_repository import FILES
from tests.eval.graders.small_repository import TASK as REPAIR
from tests.rl.conftest import DOCUMENTS
from tests.rl.envs.test_agentgym import Counting
from tests.rl.http_server import served
from warehouse.errors import RequestError
from warehouse.records import Task

FACTORY = '''"""An environment of one's own."""
from dataclasses import dataclass

from rl.envs.code import create_calculator as calculator


@dataclass
class Made:
    options: dict


def create(resources):
    return Made(dict(resources.options))
'''


@pytest.fixture
def beginnings(tmp_path: Path) -> Iterator[dict[str, tuple[dict[str, Any], dict[str, Any]]]]:
    """The options that an environment wants to begin a trajectory, and the provenance of its task, where it wants any."""
    for name, content in FILES.items():
        (tmp_path / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / name).write_bytes(content)
    (tmp_path / "tools.toml").write_text('[tools.work_out]\nfunction = "rl.envs.code:calculate"')
    repair = {"fail_to_pass": REPAIR.fail_to_pass, "pass_to_pass": REPAIR.pass_to_pass, "test_files": {}}
    with served(Counting(SERVICES["textcraft"], shows_at_reset=True).application) as url:
        yield {
            "tools": ({"file": tmp_path / "tools.toml"}, {}),
            "retrieve": ({"url": url}, {}),
            "tool_world": ({}, next(generate_tasks(1, seed=11)).provenance),
            "judge": ({"scorer": "tests.rl.envs.test_judge:Opinionated", "options": {"value": 1}, "drafts": 1}, {}),
            "agentgym": ({"url": url, "service": "textcraft"}, {"item": 5}),
            "repository": ({"folder": tmp_path}, {"snapshot": "shop", **repair}),
        }


def install(folder: Path, name: str, value: str) -> None:
    """What installing a package leaves behind."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{ENVIRONMENTS.group}]\nmaze = {value}\n")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
async def test_every_built_in_environment_shows_the_policy_its_tools_at_the_beginning(
    name: str, beginnings: dict[str, tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    if name in ("python", "repository") and not isolation().granted:
        pytest.skip(f"no sandbox here: {isolation().detail}")
    options, provenance = beginnings.get(name, ({}, {}))
    environment = find_environment(name)(Resources(SearchIndex(DOCUMENTS), options))
    assert isinstance(environment, ToolEnvironment)
    first = await environment.reset(Task("t", name, "?", (), provenance=provenance), 0)
    assert first.tools == tuple(environment.schemas) != ()


def test_an_entry_point_that_two_packages_claim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "mazes", "rl.envs.code:create_calculator")
    install(tmp_path, "more_mazes", "rl.envs.search:create")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestError, match="several installed packages have environment 'maze'"):
        find_environment("maze")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.py:create", "names a file that is not there"),
        ("broken.py:create", "cannot be imported"),
        ("whole.py:nothing", "cannot be imported"),
        ("chess", "there is no environment 'chess'; name one of agentgym,"),
    ],
)
def test_what_is_not_there_is_refused(name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("def create(:\n")
    (tmp_path / "whole.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=reason):
        find_environment(name)
    assert not [module for module in sys.modules if module.startswith("file_broken")]
