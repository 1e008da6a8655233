"""The process in which math-verify runs: `python -m eval.math_worker`, lines of JSON in, lines of JSON out.

math-verify hangs on some inputs, and its own timeouts are signals, which neither threads nor long calls into C honour. So this
process, which reads no expression itself, keeps a child that does, and kills it at the deadline. The child is a fork of a process
that has loaded and warmed math-verify, so that a new one costs milliseconds. It has limits on memory and processor time besides.

    {"gold": "\\\\frac12", "prediction": "0.5", "seconds": 4} -> {"same": true} or {"error": "…"}
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, BinaryIO

MEMORY = 2 << 30
"""Bytes of address space of the child."""
PROCESSOR_SECONDS = 600
"""What a child may compute in its life, should nobody be left to kill it."""
SERVED = 200
"""Comparisons before a child is replaced, for what sympy caches is never given back."""


def main() -> None:
    """Answer requests until the input ends."""
    from eval.math_equality import same_expression, warm

    warm()
    supervisor = _Supervisor(same_expression)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(supervisor.answer(line, float(json.loads(line)["seconds"])))
        sys.stdout.buffer.flush()
    supervisor.end()


class _Supervisor:
    """Holds the child: forks it, asks it, kills it."""

    def __init__(self, compare: Any) -> None:
        self._compare = compare
        self._child: tuple[int, BinaryIO, BinaryIO] | None = None
        self._served = 0

    def answer(self, line: bytes, seconds: float) -> bytes:
        """The child's answer, or an error where there is none within `seconds`."""
        if self._child is None:
            self._child, self._served = self._fork(), 0
        _, questions, answers = self._child
        questions.write(line)
        questions.flush()
        reply = _line_within(answers, seconds)
        self._served += 1
        if not reply.endswith(b"\n") or self._served >= SERVED:
            self.end()
        return (
            reply
            if reply.endswith(b"\n")
            else _error("the comparison ended its process" if reply == b"" else "the comparison took too long")
        )

    def end(self) -> None:
        """Kill the child, wherever it is."""
        if self._child is not None:
            process, questions, answers = self._child
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            questions.close()
            answers.close()
            self._child = None

    def _fork(self) -> tuple[int, BinaryIO, BinaryIO]:
        asked, asking = os.pipe()
        answered, answering = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(asking)
            os.close(answered)
            _serve(self._compare, os.fdopen(asked, "rb"), os.fdopen(answering, "wb"))
        os.close(asked)
        os.close(answering)
        return process, os.fdopen(asking, "wb"), os.fdopen(answered, "rb", buffering=0)


def _serve(compare: Any, questions: BinaryIO, answers: BinaryIO) -> None:
    """The child's life; it never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in questions:
        request = json.loads(line)
        try:
            answer = json.dumps({"same": compare(request["gold"], request["prediction"])}).encode() + b"\n"
        except MemoryError:
            break
        except Exception as error:  # the parser and sympy raise whatever they like over what they are given
            answer = _error(f"{type(error).__name__}: {error}"[:200])
        answers.write(answer)
        answers.flush()
    os._exit(0)


def _line_within(pipe: BinaryIO, seconds: float) -> bytes:
    """A line; b"" where the pipe was closed; what there is of it, without its end, or b"?", where time ran out."""
    end, text = time.monotonic() + seconds, b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return text or b"?"
        piece = pipe.read(65_536)
        if not piece:
            return b""
        text += piece
    return text


def _error(reason: str) -> bytes:
    return json.dumps({"error": reason}).encode() + b"\n"


if __name__ == "__main__":
    main()
