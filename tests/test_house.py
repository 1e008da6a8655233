"""The house as docs/architecture.md draws it: imports go down, no circles, no name twice in a package, no module too long to read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("warehouse", "eval", "rl", "synth", "flows")
LONGEST = 500
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for floor in FLOORS
    for path in (ROOT / floor).rglob("*.py")
}


def imported(module: str, tree: ast.AST) -> Iterator[str]:
    """The modules of the house that `tree` imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in inner]
        else:
            continue
        yield from (name for name in names if name in MODULES and name != module)


def loaded_with(tree: ast.Module) -> ast.Module:
    """What a module imports at its top, for type checkers too: two modules that name each other there are one idea in two files."""
    of_types = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    nodes = [*tree.body, *chain.from_iterable(node.body for node in of_types)]
    return ast.Module([node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)], [])


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def test_imports_go_down_and_never_up(trees: dict[str, ast.Module]) -> None:
    pairs = [(module, other) for module, tree in trees.items() for other in imported(module, tree)]
    assert [pair for pair in pairs if FLOORS.index(pair[1].split(".")[0]) > FLOORS.index(pair[0].split(".")[0])] == []


def test_modules_form_no_circle(trees: dict[str, ast.Module]) -> None:
    graph = {module: set(imported(module, loaded_with(tree))) for module, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_no_two_folders_or_root_modules_import_each_other(trees: dict[str, ast.Module]) -> None:
    """Wherever in a module the import is; `rl.envs.tool_world` and the modules of `rl.envs` are one unit, `rl.placement` is another."""
    edges = {(unit_of(module), unit_of(other)) for module, tree in trees.items() for other in imported(module, tree)}
    assert sorted((one, other) for one, other in edges if one != other and (other, one) in edges) == []


def unit_of(module: str) -> str:
    """The folder or module at a package's root: `rl.envs` of `rl.envs.tool_world.environment`, `rl.loop` of `rl.loop`."""
    return ".".join(module.split(".")[:2])


def test_no_module_is_too_long_and_each_says_what_it_is(trees: dict[str, ast.Module]) -> None:
    assert [module for module, path in MODULES.items() if len(path.read_text().splitlines()) > LONGEST] == []
    assert [module for module, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_no_two_public_classes_of_a_package_have_one_name(trees: dict[str, ast.Module]) -> None:
    """Programs that run alone in the sandbox may repeat what they cannot import."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[module.split(".")[0], node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_package_is_typed() -> None:
    assert [floor for floor in FLOORS if not (ROOT / floor / "py.typed").is_file()] == []
