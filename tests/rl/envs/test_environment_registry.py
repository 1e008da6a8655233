from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl.env_pool.config import EnvironmentPoolConfig
from rl.envs.base import BUILT_IN, ENVIRONMENTS, Resources, find_environment, offered_tools
from rl.retrieval.search import SearchIndex
from tests.rl.conftest import DOCUMENTS
from warehouse.errors import RequestError

FACTORY = '''"""An environment of one's own."""
from dataclasses import dataclass

from rl.envs.code import create_calculator as calculator


@dataclass
class Made:
    options: dict


def create(resources):
    return Made(dict(resources.options))
'''


def install(folder: Path, name: str, value: str) -> None:
    """What installing a package leaves behind."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{ENVIRONMENTS.group}]\nmaze = {value}\n")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_environment_can_be_imported(name: str) -> None:
    assert callable(find_environment(name))


def test_the_tools_on_offer_are_those_of_a_trajectory_at_its_beginning() -> None:
    pool = EnvironmentPoolConfig.model_validate({"kinds": {"mine": {"factory": "python"}}})
    for name, tools in (("search", ["search"]), ("mine", ["code"])):
        assert [tool["function"]["name"] for tool in offered_tools(name, pool, SearchIndex(DOCUMENTS))] == tools
    with pytest.raises(RequestError, match="nowhere"):
        offered_tools("nowhere", pool, None)


def test_an_entry_point_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "mazes", "rl.envs.code:create_calculator")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_environment("maze") is find_environment("calculator")


def test_an_entry_point_that_two_packages_claim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "mazes", "rl.envs.code:create_calculator")
    install(tmp_path, "more_mazes", "rl.envs.search:create")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestError, match="several installed packages have environment 'maze'"):
        find_environment("maze")


def test_a_file_is_found_and_run_once(tmp_path: Path) -> None:
    file = tmp_path / "my_env.py"
    file.write_text(FACTORY)
    factory = find_environment(f"{file}:create")
    assert factory(Resources(options={"a": 1})).options == {"a": 1}  # type: ignore[attr-defined]
    assert find_environment(f"{file}:create") is factory


def test_a_file_beside_the_caller_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_env.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    assert ENVIRONMENTS.resolve("my_env.py:create") == f"{tmp_path / 'my_env.py'}:create"


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
