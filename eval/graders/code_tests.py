"""What tests want of a program, read from their source: the functions that they call, and whether plain data is enough to judge them.

This file is copied into the examiner's sandbox. Results cross to the tests as plain data, so tests that use objects of the program's own
classes cannot be examined: that follows from the tests alone, so that no program can choose it.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_PLAIN: tuple[type, ...] = (int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range, type(iter([])), type(_ for _ in ()))
_PLAIN_ATTRIBUTES = frozenset(name for kind in _PLAIN for name in dir(kind))


def free_names(tests: str) -> list[str]:
    """Names that the tests use and do not define, which the candidate must: without any, the first function that is called."""
    tree = ast.parse(tests)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        for alias in getattr(node, "names", ())
        if hasattr(alias, "asname")
    }
    free = [node.id for node in names if node.id not in bound and not hasattr(builtins, node.id)]
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return sorted(set(free)) or called[:1]


def why_not_examined(tests: str, entry_points: list[str], check: str | None) -> str | None:
    """Why plain data is not enough to judge by these tests; None where it is."""
    tree = ast.parse(tests)
    entries = set(entry_points) | {argument for argument in _parameters(tree) if check}
    made = _results(tree, entries)
    return next((reason for node in ast.walk(tree) if (reason := _why_not(node, entries, made))), None)


def _parameters(tree: ast.Module) -> Iterator[str]:
    """What the function `check` calls the function that it is given."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "check" and node.args.args:
            yield node.args.args[0].arg


def _results(tree: ast.Module, entries: set[str]) -> dict[str, str]:
    """Variable → the function of the program's whose result it is given."""
    return {
        target.id: made
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and (made := _entry_called(node.value, entries))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _why_not(node: ast.AST, entries: set[str], made: dict[str, str]) -> str | None:
    """Why one piece of the tests cannot be examined; None where it can."""
    if isinstance(node, ast.AsyncFor | ast.AsyncWith):
        return "the tests iterate asynchronously, and asynchronous iterators cannot cross"
    if isinstance(node, ast.Attribute):
        return _why_not_attribute(node, entries, made)
    if isinstance(node, ast.BinOp):
        sides = [_source(side, entries, made) for side in (node.left, node.right)]
        return _own_object(sides[0]) if all(side and _CLASS_NAME.fullmatch(side) for side in sides) else None
    kinds: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        kinds = node.bases
    elif isinstance(node, ast.ExceptHandler) and node.type:
        kinds = [node.type]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        kinds = node.args[1:]
    used = [kind.id for kind in kinds if isinstance(kind, ast.Name) and kind.id in entries]
    return f"the tests use {used[0]} as a class, and classes cannot cross" if used else None


def _why_not_attribute(node: ast.Attribute, entries: set[str], made: dict[str, str]) -> str | None:
    if isinstance(node.value, ast.Name) and node.value.id in entries:
        return f"the tests use {node.value.id}.{node.attr}, and only calls cross"
    source = _source(node.value, entries, made)
    if source and (node.attr not in _PLAIN_ATTRIBUTES or _CLASS_NAME.fullmatch(source)):
        return _own_object(source)
    return None


def _source(node: ast.expr, entries: set[str], made: dict[str, str]) -> str | None:
    """The function of the program's whose result an expression is."""
    return made.get(node.id) if isinstance(node, ast.Name) else _entry_called(node, entries)


def _entry_called(node: ast.expr, entries: set[str]) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in entries else None


def _own_object(name: str | None) -> str:
    return f"the tests use an object that {name} makes, and objects cannot cross"
