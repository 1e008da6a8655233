"""The examiner's process: runs the tests, in which the candidate's functions are calls to the other process.

This file is copied into the process's sandbox. Reads a job from the standard input: `{tests, prompt, entry_points, check, nonce}`. Its
last line of output is the verdict as JSON: `{nonce, verdict, detail}`, the verdict `passed`, `failed`, or `broken` where it is the tests
that cannot judge.
"""

from __future__ import annotations

import ast
import builtins
import json
import socket
import sys
from collections.abc import Callable
from typing import Any

from eval.graders.plain_data import BadFrame, NotPlain, decode, encode, receive, send

CHANNEL = 3
GONE = "the program ended or broke its channel"
NEVER_CALLED = "the tests never call the program"


class CandidateGone(Exception):
    """The candidate's process ended, or broke its channel."""


class BrokenTests(Exception):
    """The tests cannot judge anything."""


class Candidate:
    """The other process: its functions by name, and how often they were called."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.calls = 0

    def wait(self) -> None:
        """Wait until the program is loaded. Raises what loading it raised."""
        _value_of(self._ask(None))

    def function(self, name: str) -> Callable[..., Any]:
        """The candidate's function `name`."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            try:
                message = {"name": name, "arguments": encode(arguments), "options": encode(options)}
            except NotPlain as error:
                raise BrokenTests(f"the tests call {name} with what cannot cross: {error}") from error
            return _value_of(self._ask(message))

        return call

    def _ask(self, message: dict[str, Any] | None) -> dict[str, Any]:
        try:
            if message is not None:
                send(self._channel, message)
            return receive(self._channel)
        except BadFrame as error:
            raise CandidateGone(str(error)) from error


def _value_of(reply: dict[str, Any]) -> Any:
    """The value of a reply. An exception of the candidate's is raised as the builtin of the same name."""
    if "raised" in reply:
        kind = getattr(builtins, str(reply["raised"]), None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        raise _make(kind if known else RuntimeError, f"{reply['raised']}: {reply.get('text')}")
    try:
        return decode(reply.get("value"))
    except (BadFrame, RecursionError) as error:
        raise CandidateGone(str(error)) from error


def _make(kind: Any, text: str) -> Exception:
    try:
        return kind(text)
    except TypeError:  # such as UnicodeDecodeError, which wants five arguments
        return RuntimeError(text)


def examine(job: dict[str, Any], candidate: Candidate) -> tuple[str, str]:
    """The verdict (`passed`, `failed` or `broken`) and its detail."""
    try:
        prompt, tests = compile(job["prompt"], "<prompt>", "exec"), compile(job["tests"], "<tests>", "exec")
        entry_points = job["entry_points"] or _free_names(job["tests"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "broken", f"the tests are not Python: {error}"
    if not entry_points:
        return "broken", NEVER_CALLED
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        candidate.wait()
        exec(prompt, names)
        names.update((name, candidate.function(name)) for name in entry_points)
        exec(tests, names)
        if job["check"]:
            names["check"](candidate.function(job["check"]))
    except CandidateGone as error:
        return "failed", f"{GONE}: {error}"
    except BrokenTests as error:
        return "broken", str(error)
    except BaseException as error:
        return "failed", f"{type(error).__name__}: {error}"[:500]
    if candidate.calls == 0:
        return "broken", NEVER_CALLED
    return "passed", ""


def _free_names(tests: str) -> list[str]:
    """Names that the tests use and do not define, which the candidate must: without any, the first function that is called."""
    tree = ast.parse(tests)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
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


def main() -> None:
    """Examine the candidate and print the verdict."""
    job = json.load(sys.stdin)
    verdict, detail = examine(job, Candidate(socket.socket(fileno=CHANNEL)))
    print("\n" + json.dumps({"nonce": job["nonce"], "verdict": verdict, "detail": detail}), flush=True)


if __name__ == "__main__":
    main()
