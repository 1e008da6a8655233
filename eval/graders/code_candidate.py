"""The candidate's process: runs the program and answers calls of its functions until nobody asks any more.

This file is copied into the process's sandbox. Everything here is in the program's hands once it runs. It does not matter: all that
leaves this process is plain data, and whoever reads it takes it for the program's answers and for nothing else.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from eval.graders.plain_data import BadFrame, decode, encode, receive, send

CHANNEL = 3


def main() -> None:
    """Run the program on the standard input, then serve."""
    source = sys.stdin.read()
    channel = socket.socket(fileno=CHANNEL)
    names: dict[str, Any] = {"__name__": "candidate", "__builtins__": __builtins__}
    try:
        exec(compile(source, "<candidate>", "exec"), names)
    except BaseException as error:  # the program's own SystemExit and KeyboardInterrupt too
        send(channel, _raised(error))
        os._exit(0)
    send(channel, {"loaded": True})
    while True:
        try:
            call = receive(channel)
        except BadFrame:
            os._exit(0)
        send(channel, _answer(names, call))


def _answer(names: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments, options = decode(call["arguments"]), decode(call["options"])
        return {"value": encode(names[call["name"]](*arguments, **options))}
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:500]
    except Exception:  # the program's own __str__ may raise whatever it likes
        text = ""
    return {"raised": type(error).__name__, "text": text}


if __name__ == "__main__":
    main()
