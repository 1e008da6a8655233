"""Commands that are killed with SIGKILL: at a certain line of their output, or once a condition holds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flows import runtime


def kill_at(line: str, command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Start the command and send its process SIGKILL as soon as it says `line` on its standard error; fails if it never does."""
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        said: list[str] = []
        for text in run.stderr:
            said.append(text)
            if line in text:
                os.kill(run.pid, signal.SIGKILL)
                return
    raise AssertionError(f"it never said {line!r}: {''.join(said)[-3000:]}")


def kill_once(come_to_pass: Callable[[], bool], command: Sequence[str]) -> None:
    """Start the command and send its process SIGKILL as soon as the condition holds; fails if it ends before that."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not come_to_pass() and run.poll() is None:
            time.sleep(0.01)
        run.kill()
    assert run.returncode == -signal.SIGKILL, f"it ended by itself, with status {run.returncode}"


def token_of(process: int) -> str | None:
    """The token of the processes that `process` started; None if it is no run, or its reaper has not started."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if parent == str(process) and runtime.__file__ in command:
                return command[command.index(runtime.__file__) + 1]
    return None
