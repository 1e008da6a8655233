"""The processes that compare expressions: started when the first is wanted, kept, shared by all threads.

Each is a `python -m eval.graders.math_worker` in a session of its own. A comparison has a deadline there; should even the worker not
answer, it is killed from here and another takes its place.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

DEADLINE_SECONDS = 4.0
"""What one comparison may compute."""
MOST_WAITING = 10
"""Times as long it may take by the wall, on a machine that has much else to do."""
WORKERS = 2
START_SECONDS = 120.0
"""How long a worker may take to load math-verify on a machine that has much else to do."""


class Undecided(ValueError):
    """The comparison was killed or its process died, so there is no result."""


class _Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "eval.graders.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._patience = START_SECONDS

    def ask(self, gold: str, prediction: str) -> bool:
        """The worker's answer. Raises Undecided where it has none."""
        request = {"gold": gold, "prediction": prediction, "seconds": DEADLINE_SECONDS}
        try:
            reply = self._exchange(json.dumps(request).encode() + b"\n", self._patience + MOST_WAITING * DEADLINE_SECONDS)
        except OSError as error:
            raise Undecided("the comparing process died") from error
        self._patience = 5.0
        if "error" in reply:
            raise Undecided(str(reply["error"]))
        return bool(reply["same"])

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it with its child, which may be at a comparison without end and holds the pipes as well."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _exchange(self, line: bytes, seconds: float) -> dict[str, object]:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None
        try:
            questions.write(line)
            questions.flush()
            reply, _ = read_line(answers, seconds)
        except BaseException:  # an interrupt too: the answer to this question would be read as that to the next
            self.end()
            raise
        if not reply:
            self.end()
            raise Undecided("the comparing process did not answer")
        return dict(json.loads(reply))


class _Pool:
    """At most `WORKERS` processes; a caller waits where all are at work."""

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)  # two processes that read one pipe would get each other's answers

    def compare(self, gold: str, prediction: str) -> bool:
        """Whether the two are equal."""
        with self._places:
            worker = self._take()
            try:
                return worker.ask(gold, prediction)
            finally:
                if worker.alive:
                    self._idle.put(worker)

    def close(self) -> None:
        """End the processes that are idle."""
        while not self._idle.empty():
            self._idle.get().end()

    def _forget(self) -> None:
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._places = threading.Semaphore(WORKERS)

    def _take(self) -> _Worker:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            return _Worker()
        return worker if worker.alive else _Worker()


_pool = _Pool()


def compare(gold: str, prediction: str) -> bool:
    """Whether two expressions are equal, both ways. Raises ValueError where the gold cannot be read, Undecided where it was killed."""
    return _pool.compare(gold, prediction)


def read_line(pipe: IO[bytes], seconds: float) -> tuple[bytes, bool]:
    """The next line of `pipe`, empty where there is none, and False only where `seconds` ran out before a line or the pipe's end."""
    end, text = time.monotonic() + seconds, b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(pipe.fileno(), 65_536) if ready else b""
        if not piece:
            return b"", bool(ready)
        text += piece
    return text, True
