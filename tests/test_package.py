"""What is installed: the wheel holds every file of the packages, and every package that they import is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.packaging import FOLDERS, PACKAGES, build_wheel, copy_sources

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = ("tests", "benchmarks", "docs")
ON_DEMAND = {"sentence_transformers"}
"""Asked for by a setting, with a sentence where they are not installed; no extra brings them."""
MODEL = ("config.json", "model.safetensors", "tokenizer.json")


brought = cache(packages_distributions)
"""The distributions that bring each top-level name; it takes seconds."""


def declared(*extras: str) -> set[str]:
    wanted = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {normal(re.split(r"[<>=!~\[ ;]", line)[0]) for line in wanted}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(path: Path) -> Iterator[str]:
    """The top-level names of what a module imports, wherever in it, that are neither ours nor Python's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = [node.module]
        else:
            continue
        tops = {name.split(".")[0] for name in names}
        yield from tops - {*sys.stdlib_module_names, *FOLDERS, *FOR_DEVELOPERS}


def undeclared(folders: Sequence[str], names: set[str]) -> dict[str, str]:
    """What modules in `folders` import and no distribution in `names` brings, with a module that does."""
    found = {name: path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) for name in imported(path)}
    return {
        name: str(path.relative_to(ROOT))
        for name, path in found.items()
        if name not in ON_DEMAND and not names & set(map(normal, brought().get(name, [name])))
    }


def test_every_import_is_declared() -> None:
    assert undeclared(PACKAGES, declared("cpu", "inspect", "langchain")) == {}
    assert undeclared(FOR_DEVELOPERS, declared("cpu", "inspect", "langchain", "dev") | {"tensorboard"}) == {}


def test_whatever_is_declared_is_locked_with_its_hashes() -> None:
    for extra in ("cpu", "gpu"):
        text = (ROOT / "requirements" / f"{extra}.lock").read_text()
        entries = re.split(r"\n(?=\S)", text)
        locked = {normal(re.split(r"[=\[]", entry)[0]) for entry in entries}
        assert declared(extra, "inspect", "langchain", "dev") - {"agent-flywheel"} <= locked
        bare = {re.split(r"[=\[]", entry)[0] for entry in entries if "--hash=sha256:" not in entry}
        assert bare == ({"torch"} if extra == "cpu" else set()), "the CPU build of torch comes from where it is found"


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    expected = {path.relative_to(sources).as_posix() for name in FOLDERS for path in (sources / name).rglob("*") if path.is_file()}
    assert len(expected) > 300 and {f"rl/policies/packaged/reader/{name}" for name in MODEL} < expected
    with zipfile.ZipFile(build_wheel(sources, tmp_path / "made")) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected
