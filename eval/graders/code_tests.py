"""What tests want of a program, read from their source: the functions that they call, and whether plain data is enough to judge them.

This file is copied into the examiner's sandbox. Results cross to the tests as plain data, so tests that use objects of the program's own
classes cannot be examined, nor those that call what it gives, look at what it changes in its arguments or writes, or at its variables: that
follows from the tests alone, so that no program can choose it.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import re
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain

_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_PLAIN: tuple[type, ...] = (int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range, type(iter([])), type(_ for _ in ()))
_PLAIN += (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, Decimal, Fraction, deque)
_OF_OBJECTS = ("str", "repr", "hash", "vars", "dir")
_OUTPUT = ("redirect_stdout", "redirect_stderr", "capsys", "capfd", "monkeypatch", "unittest.mock")
"""What tests use to see what a program in their own process writes, or to change what it runs in."""
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
    found = (_why_not(node, entries, made) for node in ast.walk(tree))
    return next(filter(None, chain(found, _changes(tree, entries))), None)


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
    if _named(node) in _OUTPUT:
        return "the tests look at what the program writes, or change what it runs in, and neither crosses"
    if isinstance(node, ast.Attribute):
        return _why_not_attribute(node, entries, made)
    if isinstance(node, ast.BinOp | ast.Compare | ast.Subscript):
        return _why_not_operands(node, entries, made)
    if called := _used_as_function(node, entries, made):
        return f"the tests call what {called} gives, or enter it, and functions cannot cross"
    kinds: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        kinds = node.bases
    elif isinstance(node, ast.ExceptHandler) and node.type:
        kinds = [node.type]
    elif isinstance(node, ast.Call):
        kinds = _kinds_in(node)
    classes = [kind.id for kind in kinds if isinstance(kind, ast.Name) and kind.id in entries]
    return f"the tests use {classes[0]} as a class, and classes cannot cross" if classes else None


def _named(node: ast.AST) -> str | None:
    """The name that a piece of the tests uses or imports."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.ImportFrom(module=name) | ast.arg(arg=name):
            return name
    return None


def _kinds_in(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are classes: those of `isinstance`, of `pytest.raises`, of unittest's `assertRaises`."""
    if isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "issubclass"):
        return call.args[1:]
    named = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    return call.args[:1] if named in ("raises", "assertRaises", "assertRaisesRegex") else []


def _why_not_operands(node: ast.BinOp | ast.Compare | ast.Subscript, entries: set[str], made: dict[str, str]) -> str | None:
    """Why an expression cannot be examined that has a variable of the program's, or objects alone."""
    operands = (
        [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value] if isinstance(node, ast.Subscript) else
        [node.left, *node.comparators]
    )  # fmt: skip
    identity = isinstance(node, ast.Compare) and all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)
    named = [side.id for side in operands if isinstance(side, ast.Name) and side.id in entries and not identity]
    if named:
        return f"the tests use {named[0]} as a value, and only calls cross"
    sides = [_source(side, entries, made) for side in operands]
    objects = len(sides) > 1 and all(side and _CLASS_NAME.fullmatch(side) for side in sides)
    return _own_object(sides[0]) if objects else None


def _used_as_function(node: ast.AST, entries: set[str], made: dict[str, str]) -> str | None:
    """The function of the program's whose result is called, entered by `with`, a decorator, or asked for its text as an object."""
    if isinstance(node, ast.withitem):
        return _source(node.context_expr, entries, made)
    if isinstance(node, ast.Call):
        own = _source(node.func, entries, made) if isinstance(node.func, ast.Name | ast.Call) else None
        of_object = isinstance(node.func, ast.Name) and node.func.id in _OF_OBJECTS and node.args
        given = _source(node.args[0], entries, made) if of_object else None
        return own if own else given if given and _CLASS_NAME.fullmatch(given) else None
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
    return next(filter(None, (_entry_called(decorator, entries) for decorator in decorators)), None)


def _changes(tree: ast.Module, entries: set[str]) -> Iterator[str]:
    """Why tests cannot be examined that call a function for nothing and then look at the variable that they gave it."""
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    for node in ast.walk(tree):
        called = _entry_called(node.value, entries) if isinstance(node, ast.Expr) else None
        if called and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            given = {argument.id for argument in node.value.args if isinstance(argument, ast.Name)}
            if any(later.id in given and later.lineno > (node.end_lineno or node.lineno) for later in read):
                yield f"the tests look at what {called} changes in its arguments, and changes do not come back"


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
