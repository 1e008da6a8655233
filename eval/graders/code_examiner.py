"""The examiner's process: runs the tests with the candidate's functions as calls to the other process.

This file is copied into the examiner's sandbox. It reads a job `{tests, prompt, entry_points, check, nonce}` from standard input and prints
the verdict as JSON: `{nonce, verdict, detail}`, where the verdict is `passed`, `failed`, or `broken` if the tests cannot judge.

Tests that check nothing are broken. Results cross as plain data, so tests are also broken if they use objects of the program's own classes,
call what it returns, or look at its variables, its output, or its changes to arguments. This is decided from the source of the tests alone,
so programs cannot influence it.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import datetime
import inspect
import json
import os
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from types import ModuleType
from typing import Any

from eval.graders.code_candidate import BadFrame, NotPlain, decode, encode, receive, send

_CHECKS = re.compile("assert|raises|fail|expect|exit", re.IGNORECASE)
"""Names of functions that check a result."""
_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_PLAIN: tuple[type, ...] = (int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range, type(iter([])), type(_ for _ in ()))
_PLAIN += (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, Decimal, Fraction, deque)
_OF_OBJECTS = ("str", "repr", "hash", "vars", "dir")
_OUTPUT = ("redirect_stdout", "redirect_stderr", "capsys", "capfd", "monkeypatch", "unittest.mock")
"""Names that tests use to observe a program's output in their own process, or to patch it."""
_PLAIN_ATTRIBUTES = frozenset(name for kind in _PLAIN for name in dir(kind))


def free_names(tests: str) -> list[str]:
    """Names that the tests use and do not define, so that the candidate must; if none, the first function they call."""
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
    """Return why the tests need more than plain data, or None."""
    tree = ast.parse(tests)
    if not any(isinstance(node, ast.Assert | ast.Raise) or _CHECKS.search(_named(node) or "") for node in ast.walk(tree)):
        return "the tests check nothing: they have neither an assertion nor a raise"
    entries = set(entry_points) | {argument for argument in _parameters(tree) if check}
    made = _results(tree, entries)
    found = (_why_not(node, entries, made) for node in ast.walk(tree))
    return next(filter(None, chain(found, _changes(tree, entries))), None)


def _parameters(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "check" and node.args.args:
            yield node.args.args[0].arg


def _results(tree: ast.Module, entries: set[str]) -> dict[str, str]:
    """Map each variable that holds a result to the candidate's function that returned it."""
    return {
        target.id: made
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and (made := _entry_called(node.value, entries))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _why_not(node: ast.AST, entries: set[str], made: dict[str, str]) -> str | None:
    if isinstance(node, ast.AsyncFor | ast.AsyncWith):
        return "the tests iterate asynchronously, and asynchronous iterators cannot cross processes"
    if _named(node) in _OUTPUT:
        return "the tests look at what the program writes, or change its environment, and neither crosses processes"
    if isinstance(node, ast.Attribute):
        return _why_not_attribute(node, entries, made)
    if isinstance(node, ast.BinOp | ast.Compare | ast.Subscript):
        return _why_not_operands(node, entries, made)
    if called := _used_as_function(node, entries, made):
        return f"the tests call the result of {called} or enter it as a context, and functions cannot cross processes"
    kinds: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        kinds = node.bases
    elif isinstance(node, ast.ExceptHandler) and node.type:
        kinds = [node.type]
    elif isinstance(node, ast.Call):
        kinds = _kinds_in(node)
    classes = [kind.id for kind in kinds if isinstance(kind, ast.Name) and kind.id in entries]
    return f"the tests use {classes[0]} as a class, and classes cannot cross processes" if classes else None


def _named(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.ImportFrom(module=name) | ast.arg(arg=name):
            return name
    return None


def _kinds_in(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are classes: those of `isinstance`, `issubclass`, `raises` and unittest's `assertRaises`."""
    if isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "issubclass"):
        return call.args[1:]
    named = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    return call.args[:1] if named in ("raises", "assertRaises", "assertRaisesRegex") else []


def _why_not_operands(node: ast.BinOp | ast.Compare | ast.Subscript, entries: set[str], made: dict[str, str]) -> str | None:
    operands = (
        [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value] if isinstance(node, ast.Subscript) else
        [node.left, *node.comparators]
    )  # fmt: skip
    identity = isinstance(node, ast.Compare) and all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)
    named = [side.id for side in operands if isinstance(side, ast.Name) and side.id in entries and not identity]
    if named:
        return f"the tests use {named[0]} as a value, and only calls cross processes"
    sides = [_source(side, entries, made) for side in operands]
    objects = len(sides) > 1 and all(side and _CLASS_NAME.fullmatch(side) for side in sides)
    return _own_object(sides[0]) if objects else None


def _used_as_function(node: ast.AST, entries: set[str], made: dict[str, str]) -> str | None:
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
    """Objections to statements that call a function, ignore the result, and later read the variable they passed."""
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    for node in ast.walk(tree):
        called = _entry_called(node.value, entries) if isinstance(node, ast.Expr) else None
        if called and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            given = {argument.id for argument in node.value.args if isinstance(argument, ast.Name)}
            if any(later.id in given and later.lineno > (node.end_lineno or node.lineno) for later in read):
                yield f"the tests check what {called} changes in its arguments, and such changes do not cross processes"


def _why_not_attribute(node: ast.Attribute, entries: set[str], made: dict[str, str]) -> str | None:
    if isinstance(node.value, ast.Name) and node.value.id in entries:
        return f"the tests use {node.value.id}.{node.attr}, and only calls cross processes"
    source = _source(node.value, entries, made)
    if source and (node.attr not in _PLAIN_ATTRIBUTES or _CLASS_NAME.fullmatch(source)):
        return _own_object(source)
    return None


def _source(node: ast.expr, entries: set[str], made: dict[str, str]) -> str | None:
    """Return the candidate's function whose result an expression is, or None."""
    return made.get(node.id) if isinstance(node, ast.Name) else _entry_called(node, entries)


def _entry_called(node: ast.expr, entries: set[str]) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in entries else None


def _own_object(name: str | None) -> str:
    return f"the tests use an object that {name} returns, and objects cannot cross processes"


CHANNEL = 3
GONE = "the program ended or broke its channel"
NEVER_CALLED = "the tests never call the program"
_MOST_AT_ONCE = 1024
"""Maximum items of an iterator per request; the first request asks for one, each further one for twice as many."""


class CandidateGone(Exception):
    """The candidate's process ended or broke its channel."""


class BrokenTests(Exception):
    """The tests cannot judge anything."""


class Candidate:
    """The other process: its functions by name, and the number of calls."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.calls = 0

    def wait(self) -> None:
        """Wait until the program is loaded; raises what loading it raised."""
        self._value_of(self._ask(None))

    def function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            try:
                message = {"name": name, "arguments": encode(arguments), "options": encode(options)}
            except NotPlain as error:
                raise BrokenTests(f"the tests call {name} with arguments that cannot cross processes: {error}") from error
            return self._value_of(self._ask(message))

        return call

    def _value_of(self, reply: Any) -> Any:
        if not isinstance(reply, dict):
            raise CandidateGone("a reply that is not a message")
        if "raised" in reply:
            raise _exception(reply)
        if "iterator" in reply:
            return self._iterate(reply["iterator"])
        if "coroutine" in reply:
            return self._awaited(reply["coroutine"])
        return _decoded(reply.get("value"))

    def _iterate(self, handle: Any) -> Iterator[Any]:
        count = 1
        while True:
            reply = self._ask({"next": handle, "count": count})
            items = reply.get("items")
            yield from map(_decoded, items if isinstance(items, list) else [])
            if "raised" in reply:
                raise _exception(reply)
            if reply.get("more") is not True:
                return
            count = min(2 * count, _MOST_AT_ONCE)

    def _awaited(self, reply: Any) -> Coroutine[Any, Any, Any]:
        async def give() -> Any:
            return self._value_of(reply)

        return give()

    def _ask(self, message: dict[str, Any] | None) -> dict[str, Any]:
        try:
            if message is not None:
                send(self._channel, message)
            return receive(self._channel)
        except BadFrame as error:
            raise CandidateGone(str(error)) from error


def _exception(reply: dict[str, Any]) -> Exception:
    kind = getattr(builtins, str(reply["raised"]), None)
    known = isinstance(kind, type) and issubclass(kind, Exception)
    return _make(kind if known else RuntimeError, f"{reply['raised']}: {reply.get('text')}")


def _decoded(data: Any) -> Any:
    try:
        return decode(data)
    except (BadFrame, RecursionError) as error:
        raise CandidateGone(str(error)) from error


def _make(kind: Any, text: str) -> Exception:
    try:
        return kind(text)
    except TypeError:  # such as UnicodeDecodeError, which needs five arguments
        return RuntimeError(text)


def examine(job: dict[str, Any], candidate: Candidate) -> tuple[str, str]:
    """Return the verdict (`passed`, `failed` or `broken`) and its detail."""
    try:
        prompt = compile(job["prompt"], "<prompt>", "exec")
        tests = compile(job["tests"], "<tests>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        entry_points = job["entry_points"] or free_names(job["tests"])
        reason = why_not_examined(job["tests"], entry_points, job["check"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "broken", f"the tests are not Python: {error}"
    if reason or not entry_points:
        return "broken", reason or NEVER_CALLED
    module = sys.modules["tests"] = ModuleType("tests")  # as in the candidate
    names = module.__dict__
    try:
        candidate.wait()
        exec(prompt, names)
        names.update((name, candidate.function(name)) for name in entry_points)
        _finish(eval(tests, names))
        if job["check"]:
            _finish(names["check"](candidate.function(job["check"])))
    except CandidateGone as error:
        return "failed", f"{GONE}: {error}"
    except BrokenTests as error:
        return "broken", str(error)
    except BaseException as error:
        return "failed", f"{type(error).__name__}: {error}"[:500]
    if candidate.calls == 0:
        return "broken", NEVER_CALLED
    return "passed", ""


def _finish(ran: Any) -> None:
    if inspect.iscoroutine(ran):
        asyncio.run(ran)


def main() -> None:
    """Examine the candidate and print the verdict. The tests' output, which the candidate may influence, is discarded."""
    job, output, nowhere = json.load(sys.stdin), os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    verdict, detail = examine(job, Candidate(socket.socket(fileno=CHANNEL)))
    os.write(output, json.dumps({"nonce": job["nonce"], "verdict": verdict, "detail": detail}).encode())


if __name__ == "__main__":
    main()
