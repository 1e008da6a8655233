"""The candidate's process: runs the program, answers calls to its functions, and defines the plain data sent to the examiner.

This file is copied into both sandboxes, so it imports only the standard library. In the candidate's sandbox the running program can
manipulate everything here. That is harmless: only plain data leaves the process, and the examiner treats it as the program's answers.

Plain data is None, booleans, numbers (also numpy's, decimals and fractions), text, bytes, dates and times without a zone, lists, tuples,
sets, dictionaries, deques and iterators of these. It is sent as JSON in frames on a stream socket. Decoded values have Python's own types
whatever their class was, so an object that claims to equal everything arrives as its content.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from types import ModuleType
from typing import Any

MAX_FRAME_BYTES = 2**24
_MAX_ITERATOR_ITEMS = 10**6


class NotPlain(TypeError):
    """A value that is not plain data, or too large."""


class BadFrame(Exception):
    """The other process is gone, or sent an invalid frame."""


def encode(value: Any) -> Any:
    """Convert `value` to JSON-serializable data. Raises NotPlain if it cannot be sent, RecursionError if it contains itself."""
    if value is None or value is True or value is False:
        return value
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item())
    raise NotPlain(f"{type(value).__name__} is not plain data")


def decode(data: Any) -> Any:
    """Restore a value from `encode`. Raises BadFrame for anything else."""
    if data is None or isinstance(data, bool):
        return data
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], str) and data[0] in _READERS):
        raise BadFrame("data that was not encoded here")
    try:
        return _READERS[data[0]](data[1])
    except (TypeError, ValueError, ArithmeticError) as error:  # Decimal and Fraction raise ArithmeticError, as is OverflowError
        raise BadFrame(f"data that cannot be read: {error}") from error


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one frame: its length in 4 bytes, then JSON. Raises NotPlain if it is too long, BadFrame without a reader."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise NotPlain(f"more than {MAX_FRAME_BYTES} bytes of data")
    try:
        channel.sendall(len(body).to_bytes(4, "big") + body)
    except OSError as error:
        raise BadFrame("no one is listening") from error


def receive(channel: socket.socket) -> dict[str, Any]:
    """Receive the next frame. Raises BadFrame if it is missing or invalid."""
    size = int.from_bytes(_exactly(channel, 4), "big")
    if size > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {size} bytes")
    try:
        message = json.loads(_exactly(channel, size))
    except (ValueError, RecursionError) as error:
        raise BadFrame("a frame that is not JSON") from error
    if not isinstance(message, dict):
        raise BadFrame("a frame without a message")
    return message


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = channel.recv(size - len(data))
        except OSError as error:
            raise BadFrame("the other side has gone") from error
        if not piece:
            raise BadFrame("the other side has gone")
        data += piece
    return bytes(data)


def _items(items: Iterator[Any]) -> list[Any]:
    return [encode(item) for item in items]


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [[encode(key), encode(item)] for key, item in dict.items(value)]


def _iterator_items(value: Iterator[Any]) -> list[Any]:
    found = list(islice(value, _MAX_ITERATOR_ITEMS + 1))
    if len(found) > _MAX_ITERATOR_ITEMS:
        raise NotPlain(f"an iterator of more than {_MAX_ITERATOR_ITEMS} items")
    return _items(iter(found))


def _moment(value: datetime.datetime | datetime.time) -> list[Any]:
    if value.tzinfo is not None:
        raise NotPlain("a time with a zone is not plain data")
    return [value.isoformat(), value.fold]


_WRITERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (int, lambda value: ["int", format(int.__index__(value), "x")]),
    (float, lambda value: ["float", float.hex(value)]),
    (complex, lambda value: ["complex", [float.hex(value.real), float.hex(value.imag)]]),
    (str, lambda value: ["str", str.__str__(value)]),
    ((bytes, bytearray), lambda value: ["bytes", bytes(value).hex()]),
    (list, lambda value: ["list", _items(list.__iter__(value))]),
    (tuple, lambda value: ["tuple", _items(tuple.__iter__(value))]),
    (set, lambda value: ["set", _items(set.__iter__(value))]),
    (frozenset, lambda value: ["frozenset", _items(frozenset.__iter__(value))]),
    (dict, lambda value: ["dict", _pairs(value)]),
    (range, lambda value: ["range", [format(number, "x") for number in (value.start, value.stop, value.step)]]),
    (Decimal, lambda value: ["decimal", Decimal.__str__(value)]),
    (Fraction, lambda value: ["fraction", [format(part, "x") for part in (value.numerator, value.denominator)]]),
    (datetime.datetime, lambda value: ["datetime", _moment(value)]),
    (datetime.date, lambda value: ["date", datetime.date.isoformat(value)]),
    (datetime.time, lambda value: ["time", _moment(value)]),
    (datetime.timedelta, lambda value: ["timedelta", [value.days, value.seconds, value.microseconds]]),
    (deque, lambda value: ["deque", _items(deque.__iter__(value))]),
    (Iterator, lambda value: ["iterator", _iterator_items(value)]),
)
_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda data: int(data, 16),
    "float": float.fromhex,
    "complex": lambda data: complex(*map(float.fromhex, data)),
    "str": lambda data: "".join([data]),
    "bytes": bytes.fromhex,
    "list": lambda data: list(map(decode, data)),
    "tuple": lambda data: tuple(map(decode, data)),
    "set": lambda data: set(map(decode, data)),
    "frozenset": lambda data: frozenset(map(decode, data)),
    "dict": lambda data: {decode(key): decode(value) for key, value in data},
    "range": lambda data: range(*(int(number, 16) for number in data)),
    "decimal": Decimal,
    "fraction": lambda data: Fraction(*(int(part, 16) for part in data)),
    "datetime": lambda data: datetime.datetime.fromisoformat(data[0]).replace(fold=data[1]),
    "date": datetime.date.fromisoformat,
    "time": lambda data: datetime.time.fromisoformat(data[0]).replace(fold=data[1]),
    "timedelta": lambda data: datetime.timedelta(*data),
    "deque": lambda data: deque(map(decode, data)),
    "iterator": lambda data: iter(list(map(decode, data))),
}


CHANNEL = 3


def main() -> None:
    """Run the program from standard input, then serve calls."""
    source = sys.stdin.read()
    channel = socket.socket(fileno=CHANNEL)
    module = sys.modules["candidate"] = ModuleType("candidate")  # dataclasses and pickle look up the program's names there
    names = module.__dict__
    try:
        exec(compile(source, "<candidate>", "exec"), names)
    except BaseException as error:  # including the program's SystemExit and KeyboardInterrupt
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
    """Convert a result to a message: plain data, the index of an iterator kept here, or the result of a coroutine."""
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
    except Exception:  # the program's own __str__ may raise anything
        text = ""
    return {"raised": type(error).__name__, "text": text}


if __name__ == "__main__":
    main()
