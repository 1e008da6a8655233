"""The examiner's process: runs the tests, in which the candidate's functions are calls to the other process.

This file is copied into the process's sandbox. Reads a job from the standard input: `{tests, prompt, entry_points, check, nonce}`. Its
output is the verdict as JSON: `{nonce, verdict, detail}`, the verdict `passed`, `failed`, or `broken` where it is the tests
that cannot judge.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import json
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from types import ModuleType
from typing import Any

from eval.graders.code_tests import free_names, why_not_examined
from eval.graders.plain_data import BadFrame, NotPlain, decode, encode, receive, send

CHANNEL = 3
GONE = "the program ended or broke its channel"
NEVER_CALLED = "the tests never call the program"
_MOST_AT_ONCE = 1024
"""Items of an iterator that are asked for at once; the first alone, and then twice as many each time."""


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
        self._value_of(self._ask(None))

    def function(self, name: str) -> Callable[..., Any]:
        """The candidate's function `name`."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            try:
                message = {"name": name, "arguments": encode(arguments), "options": encode(options)}
            except NotPlain as error:
                raise BrokenTests(f"the tests call {name} with what cannot cross: {error}") from error
            return self._value_of(self._ask(message))

        return call

    def _value_of(self, reply: Any) -> Any:
        """The value of a reply: plain data, an iterator, or a coroutine. Raises an exception of the candidate's."""
        if not isinstance(reply, dict):
            raise CandidateGone("a reply that is no message")
        if "raised" in reply:
            raise _exception(reply)
        if "iterator" in reply:
            return self._iterate(reply["iterator"])
        if "coroutine" in reply:
            return self._awaited(reply["coroutine"])
        return _decoded(reply.get("value"))

    def _iterate(self, handle: Any) -> Iterator[Any]:
        """The items of an iterator of the candidate's, as they are wanted."""
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
    """An exception of the candidate's as the builtin of the same name."""
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
    except TypeError:  # such as UnicodeDecodeError, which wants five arguments
        return RuntimeError(text)


def examine(job: dict[str, Any], candidate: Candidate) -> tuple[str, str]:
    """The verdict (`passed`, `failed` or `broken`) and its detail."""
    try:
        prompt = compile(job["prompt"], "<prompt>", "exec")
        tests = compile(job["tests"], "<tests>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        entry_points = job["entry_points"] or free_names(job["tests"])
        reason = why_not_examined(job["tests"], entry_points, job["check"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "broken", f"the tests are not Python: {error}"
    if reason or not entry_points:
        return "broken", reason or NEVER_CALLED
    module = sys.modules["tests"] = ModuleType("tests")  # as the candidate has it
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
    """Run to its end what the tests await."""
    if inspect.iscoroutine(ran):
        asyncio.run(ran)


def main() -> None:
    """Examine the candidate and print the verdict; what the tests print, perhaps of the candidate's making, goes nowhere."""
    job, output, nowhere = json.load(sys.stdin), os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    verdict, detail = examine(job, Candidate(socket.socket(fileno=CHANNEL)))
    os.write(output, json.dumps({"nonce": job["nonce"], "verdict": verdict, "detail": detail}).encode())


if __name__ == "__main__":
    main()
