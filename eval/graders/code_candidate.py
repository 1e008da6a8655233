"""The candidate's process: runs the program and answers calls of its functions until nobody asks any more.

This file is copied into the process's sandbox. Everything here is in the program's hands once it runs. It does not matter: all that
leaves this process is plain data, and whoever reads it takes it for the program's answers and for nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any

from eval.graders.plain_data import BadFrame, decode, encode, receive, send

CHANNEL = 3


def main() -> None:
    """Run the program on the standard input, then serve."""
    source = sys.stdin.read()
    channel = socket.socket(fileno=CHANNEL)
    module = sys.modules["candidate"] = ModuleType("candidate")  # where dataclasses and pickle look the program's names up
    names = module.__dict__
    try:
        exec(compile(source, "<candidate>", "exec"), names)
    except BaseException as error:  # the program's own SystemExit and KeyboardInterrupt too
        send(channel, _raised(error))
        os._exit(0)
    send(channel, {"loaded": True})
    iterators: list[Iterator[Any]] = []
    while True:
        try:
            call = receive(channel)
        except BadFrame:
            os._exit(0)
        send(channel, _next_items(iterators, call) if "next" in call else _answer(names, iterators, call))


def _answer(names: dict[str, Any], iterators: list[Iterator[Any]], call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments, options = decode(call["arguments"]), decode(call["options"])
        return _crossing(iterators, names[call["name"]](*arguments, **options))
    except BaseException as error:
        return _raised(error)


def _crossing(iterators: list[Iterator[Any]], value: Any) -> dict[str, Any]:
    """A result as a message: plain data, the place of an iterator that is kept here, or what a coroutine gives."""
    if inspect.iscoroutine(value):
        try:
            return {"coroutine": _crossing(iterators, asyncio.run(value))}
        except BaseException as error:
            return {"coroutine": _raised(error)}
    if isinstance(value, Iterator):
        iterators.append(value)
        return {"iterator": len(iterators) - 1}
    return {"value": encode(value)}


def _next_items(iterators: list[Iterator[Any]], call: dict[str, Any]) -> dict[str, Any]:
    items: list[Any] = []
    try:
        for item in islice(iterators[call["next"]], call["count"]):
            items.append(encode(item))
    except BaseException as error:
        return {"items": items, **_raised(error)}
    return {"items": items, "more": len(items) == call["count"]}


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:500]
    except Exception:  # the program's own __str__ may raise whatever it likes
        text = ""
    return {"raised": type(error).__name__, "text": text}


if __name__ == "__main__":
    main()
