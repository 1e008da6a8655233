"""Run a command with limits on time and output, and end everything that it started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from rl.envs.base import EnvironmentFault

_MOST_OUTPUT = 2**20
"""Bytes kept of the end of each stream."""
_CHUNK = 65_536
_SWEEPS = 10
"""Maximum rounds of ending processes that start others meanwhile."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended; `status` is None if its time was up."""

    status: int | None
    output: str
    errors: str


async def run_command(command: Sequence[str], text: str, variables: Mapping[str, str], folder: Path, seconds: float, mark: str) -> Ran:
    """Run `command` in `folder` with `text` as standard input, until it ends or its time is up.

    What it left running is killed: its process group, and every process that has `mark`, a value in `variables`, in its environment.

    Raises:
        EnvironmentFault: it cannot be started.
    """
    with _Stream() as output, _Stream() as errors, TemporaryFile() as asked:
        asked.write(text.encode(errors="replace"))
        asked.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=folder, env=dict(variables), start_new_session=True, stdin=asked, stdout=output.end, stderr=errors.end
            )
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"the harness {command[0]!r:.200} cannot be started: {error}") from error
        status = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    status = await process.wait()
        finally:
            _end_all(process.pid, mark)
            await process.wait()
        return Ran(status, output.text, errors.text)


class _Stream(AbstractContextManager["_Stream"]):
    """A pipe for one output of a command, read all the time, since a full one would stop the command. It need not be closed to be read."""

    def __init__(self) -> None:
        self._start, self.end = os.pipe()
        self._data, self._loop = bytearray(), asyncio.get_running_loop()
        os.set_blocking(self._start, False)
        self._loop.add_reader(self._start, self._take)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._start)
        os.close(self._start)
        os.close(self.end)

    @property
    def text(self) -> str:
        """The end of what was written so far."""
        for _ in range(_MOST_OUTPUT // _CHUNK):  # a pipe holds less, and what still writes must not keep this waiting
            if not self._take():
                break
        return self._data.decode(errors="replace")

    def _take(self) -> bool:
        with suppress(BlockingIOError):
            self._data += os.read(self._start, _CHUNK)
            del self._data[:-_MOST_OUTPUT]
            return True
        return False


def _end_all(group: int, mark: str) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(_SWEEPS):
        marked = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _holds(path, mark.encode())]
        for process in marked:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not marked:
            return


def _holds(path: Path, mark: bytes) -> bool:
    """Whether the environment of a process holds `mark`; that of others' processes and of ended ones cannot be read."""
    try:
        return mark in path.read_bytes()
    except OSError:
        return False
