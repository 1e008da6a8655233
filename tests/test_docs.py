"""What pages, examples and messages name exists: configuration keys, commands and their flags, and what a block of Python imports."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer
from pydantic import BaseModel

from flows.cli import app
from flows.cli.reference import commands_page, settings_page
from flows.config import FlywheelConfig, TurnConfig
from flows.suites.config import SuiteConfig
from rl.tools.config import ToolsFile
from tests.test_house import MODULES
from warehouse.settings import models_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
ROOTS = (FlywheelConfig, SuiteConfig, ToolsFile)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"(?<![\w./:-])[a-z_]+(?:\.[a-z_]\w*)+(?![\w(/])")
SET = re.compile(r"--set[ =]['\"]?([a-z_][\w.]*)=")
FILES = (".py", ".md", ".toml", ".json", ".jsonl", ".csv", ".html", ".sql", ".txt", ".yaml", ".digest", ".duckdb")
PROVENANCE = {"rollout.tools", "world.definition", "world.domain"}
"""Keys of a task's provenance, and no configuration."""


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """The types of a model's fields, by the names that they have in a profile."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def has_key(kind: Any, path: list[str]) -> bool:
    """Whether a type has a key; a dictionary has any name, and what is below `later` has the names of a turn."""
    if not path or kind is Any:
        return True
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = {**fields_of(kind), **({"later": TurnConfig} if kind is FlywheelConfig else {})}
        return path[0] in inner and has_key(inner[path[0]], path[1:])
    if get_origin(kind) is dict:
        return has_key(get_args(kind)[1], path[1:])
    return any(has_key(each, path) for each in get_args(kind))


def sections() -> dict[str, list[type[BaseModel]]]:
    """The models that stand under each name, wherever in the configuration."""
    found: dict[str, list[type[BaseModel]]] = {}
    waiting = list[type[BaseModel]](ROOTS)
    for model in waiting:
        for name, kind in fields_of(model).items():
            inner = list(models_in(kind))
            found.setdefault(name, []).extend(inner)
            waiting += [each for each in inner if each not in waiting]
    return {name: inner for name, inner in found.items() if inner}


SECTIONS = sections()


def is_code(name: str) -> bool:
    """Whether a dotted name is a module of the house, or something in one."""
    module, _, attribute = name.rpartition(".")
    return any(each == name or each.startswith(f"{name}.") for each in MODULES) or (
        module in MODULES and hasattr(importlib.import_module(module), attribute)
    )


def unknown_keys(texts: Iterable[str]) -> set[str]:
    """Dotted names in `texts` that begin with a section of the configuration and are no key of it, no code, and no file."""
    found = set[str]()
    for name in {name for text in texts for name in NAME.findall(text)}:
        first, *rest = name.split(".")
        known = first not in SECTIONS or any(has_key(model, rest) for model in SECTIONS[first]) or has_key(FlywheelConfig, [first, *rest])
        if not (known or name in PROVENANCE or name.endswith(FILES) or is_code(name)):
            found.add(name)
    return found


def leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The paths of all keys of a TOML table."""
    for key, value in table.items():
        yield [*above, key]
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))


def words_of(page: str) -> Iterator[list[str]]:
    """The words of each `flywheel` command of a page, in its blocks and in its text."""
    blocks = [line for kind, block in BLOCK.findall(page) if kind != "text" for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    for line in [*blocks, *SPAN.findall(BLOCK.sub("", page))]:
        if found := re.match(r"(?:\$ )?(?:\.venv/bin/)?flywheel ([^|&#]*)", line.strip()):
            try:
                yield shlex.split(found[1])
            except ValueError:  # a quoted text with a mark that ends the pattern: the words before it are looked at
                yield found[1].partition("'")[0].partition('"')[0].split()


def wrong_words(words: list[str]) -> list[str]:
    """What of a command's words is no command and no flag."""
    command: Any = typer.main.get_command(app)
    flags = {"--help"}
    for word in (word.strip("[]") for word in words):
        if hasattr(command, "commands") and not word.startswith("-"):
            names = word.split("|")
            if any(name not in command.commands for name in names) and not word.isupper():
                return [word]
            command = command.commands.get(names[0], command)
    flags.update(flag for each in command.params for flag in (*each.opts, *each.secondary_opts))
    return [word for word in (each.strip("[]") for each in words) if re.match(r"--[a-z]", word) and word.split("=")[0] not in flags]


def test_a_key_that_does_not_exist_is_found() -> None:
    unknown = {"rl.no_such", "rollout.environments.options.python", "filters.nothing"}
    assert unknown_keys([f"set {' or '.join(unknown)}"]) == unknown
    known = "rl.health.limits, filters.refills, later.sft.from, rollout.environments.kinds.python.options, rl.advantages, rl.tools.Tool"
    assert unknown_keys([known]) == set()
    assert wrong_words(["eval", "--suite", "x", "--no-such"]) == ["--no-such"] and wrong_words(["evaluate"]) == ["evaluate"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_key_command_and_flag_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    assert unknown_keys(SPAN.findall(text)) == set()
    chosen = [key for key in SET.findall(text) if key != "k"]
    assert [key for key in chosen if not any(has_key(root, key.split(".")) for root in ROOTS[:2])] == []
    assert [(words, wrong) for words in words_of(text) if (wrong := wrong_words(words))] == []
    for kind, block in BLOCK.findall(text):
        table = tomllib.loads(block) if kind == "toml" else {}
        if "project" in table or any("questions" in each for each in table.values() if isinstance(each, dict)):
            continue  # a package's entry points; a file of wordings, whose keys are relations
        missing = [[path for path in leaves(table) if not has_key(root, path)] for root in ROOTS]
        assert min(missing, key=len) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_python_compiles_and_what_it_imports_exists(page: Path) -> None:
    for kind, block in BLOCK.findall(page.read_text()):
        if kind != "python":
            continue
        tree = compile(block, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            for name in [each.name for each in node.names] if isinstance(node, ast.Import) else []:
                importlib.import_module(name)
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module = importlib.import_module(node.module)
                assert [each.name for each in node.names if not hasattr(module, each.name)] == [], f"{node.module} in {page.name}"


def test_every_key_that_messages_and_profiles_name_exists() -> None:
    trees = [ast.parse(path.read_text()) for path in MODULES.values()]
    texts = [each.value for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    texts += [path.read_text() for path in (ROOT / "profiles").rglob("*.toml")]
    assert {name for name in unknown_keys(texts) if name.partition(".")[0] in FlywheelConfig.model_fields} == set()


def test_the_reference_pages_are_written_from_the_code() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == commands_page(), "write them anew: python -m flows.cli.reference"
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "write them anew: python -m flows.cli.reference"


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [Path(sys.executable).parent / "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert (tmp_path / "build" / "site" / "index.html").is_file()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md) [no anchor](install.md#gone)")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300).returncode != 0
