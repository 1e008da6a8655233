"""A process that does synthesis and can be killed at any moment, for tests of what is there when it is started again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(slots=True)
class Worker:
    """The process that forks one that works, and its orders and answers."""

    orders: IO[str]
    answers: IO[str]

    def run(self, home: Path, kill_after: float | None = None, kind: str = "all", kill_when: Callable[[], bool] | None = None) -> int:
        """The exit status of a synthesis in `home`; -9 where it was killed, after so many seconds or when the condition held."""
        print(f"{kind} {home}", file=self.orders, flush=True)
        child = os.pidfd_open(int(self.answers.readline()))
        try:
            if kill_after is not None:
                time.sleep(kill_after)
            while kill_when is not None and not kill_when() and not select.select([child], [], [], 0.002)[0]:
                pass
            if kill_after is not None or kill_when is not None:
                with suppress(ProcessLookupError):  # it has ended by itself
                    signal.pidfd_send_signal(child, signal.SIGKILL)
            return int(self.answers.readline())
        finally:
            os.close(child)


@contextmanager
def worker() -> Iterator[Worker]:
    """A worker that has loaded its libraries."""
    script = Path(__file__).parent / "synthesis_process.py"
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=script.parent.parent.parent
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield Worker(process.stdin, process.stdout)
    finally:
        process.stdin.close()
        process.wait(30)
