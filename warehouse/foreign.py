"""Files from other people are parsed in a child process with limited memory and processor time (`foreign_child.py`).

The child sends plain rows back as JSON, so a file that crashes or takes over a parser neither ends this process nor runs code in it: it
becomes one sentence that names the file. Children are started when needed, kept for the next file, and killed after any file that fails.
A file's rows may hold two hundred times its size, and at least 64 MiB, which real data keeps to by far.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from warehouse.connections import most_memory
from warehouse.errors import RequestError
from warehouse.foreign_child import BYTES_MARK, MEMORY_STATUS
from warehouse.foreign_text import MIB

FREE_BYTES, MOST_BYTES = 64 * MIB, 4096 * MIB
"""Bytes of rows that any file may hold, and the most that a packed one may."""
MOST_GROWTH, MOST_PLAIN_GROWTH = 200, 4
"""Bytes of rows for each byte of a file: up to `MOST_BYTES`, and beyond."""
FREE_VALUES, VALUES_A_BYTE = 2_000_000, 4
CHILD_MEMORY, MEMORY_A_BYTE = 2048 * MIB, 8
CHILD_SECONDS, SECONDS_A_MIB = 120, 20
"""Processor time for any file, and for each of its MiB."""
SILENCE_SECONDS = 600.0
"""Wall-clock limit for the next frame of a child that waits for something else than the processor."""
KEPT_CHILDREN = 2
HUB = "hf:"
"""Starts the name of a data set on the Hugging Face hub."""
KINDS = (
    "a .json, .jsonl, .csv, .tsv (each also .gz), .parquet or .arrow file, a folder that `datasets` has saved, or hf:NAME[:CONFIG][@SPLIT]"
)
_MARK = BYTES_MARK.encode("utf-8", "surrogatepass")


class Oversized(RequestError):
    """A file needs more memory or time, or holds more, than it may."""


@dataclass(frozen=True, slots=True)
class Delimiting:
    """The delimiter and the encoding of a CSV file; what is empty is guessed."""

    delimiter: str = ""
    encoding: str = ""


GUESSED = Delimiting()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `path`: its value, or why it has none. `line` counts lines of text or rows of a table from 1."""

    path: Path
    line: int
    text: str
    value: Any = None
    fault: str | None = None


def is_saved(path: Path) -> bool:
    """Whether `path` is a folder that `datasets` has saved."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def room_for(size: int) -> int:
    """The bytes of rows that a file of `size` bytes may hold."""
    return max(FREE_BYTES, min(MOST_BYTES, MOST_GROWTH * size), MOST_PLAIN_GROWTH * size)


def open_table(path: Path, form: Delimiting = GUESSED, text: str = "") -> tuple[dict[str, Any], Iterator[Row]]:
    """The head of a table (its `format`, and `columns` unless it is JSON) and its rows; of what is not text, a row's `text` is its value's.

    Args:
        form: the delimiter and encoding of CSV; the head has those that were found.
        text: `json` to read text of any name as JSON.

    Raises:
        RequestError: there is no such file, or it cannot be read; also while rows are read.
    """
    if not path.exists():
        raise RequestError(f"there is no file {path}; name {KINDS}.")
    if path.is_dir() and not is_saved(path):
        raise RequestError(f"the folder {path} is none that `datasets` has saved; name {KINDS}.")
    return read_foreign("table", path, delimiter=form.delimiter, encoding=form.encoding, text=text, known=KINDS)


def read_foreign(kind: str, path: Path, **options: str) -> tuple[dict[str, Any], Iterator[Row]]:
    """Have a child read a file: what is known of the whole, and its rows as they come. The kinds are those of `foreign_child.py`.

    Raises:
        RequestError: the child refuses the file, or dies of it; also while rows are read.
    """
    frames = _frames(kind, path, options)
    head = next(frames)
    return head["head"], _rows(frames, path)


def _rows(frames: Iterator[dict[str, Any]], path: Path) -> Iterator[Row]:
    for frame in frames:
        for line, fault, text, value in frame["rows"]:
            yield Row(path, line, text or str(value)[:500], value, fault)


def _frames(kind: str, path: Path, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The frames of a reply, parsed; the child goes back to the others if it came to the end of the file."""
    size = _size_of(path)
    room = room_for(size)
    limits = {
        "room": room,
        "values": max(FREE_VALUES, VALUES_A_BYTE * size),
        "memory": max(CHILD_MEMORY, min(most_memory(), CHILD_MEMORY + MEMORY_A_BYTE * size)),
        "seconds": CHILD_SECONDS + SECONDS_A_MIB * size // MIB,
    }
    child = _pool.take()
    done = False
    try:
        child.ask({"kind": kind, "path": str(path.absolute()), "options": options, **limits})
        while True:
            data = child.frame(path, limits, room)
            room -= len(data)
            try:
                frame = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{path} has a row that is nested too deep: write it flatter.") from error
            if "refused" in frame:
                raise RequestError(str(frame["refused"]).replace(str(path.absolute()), str(path)))
            if "done" in frame:
                done = True
                return
            yield _with_bytes(frame) if _MARK in data else frame
    finally:
        _pool.give(child) if done else child.end()


def _with_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64decode(value[1:]) if value.startswith(BYTES_MARK) else value
    if isinstance(value, dict):
        return {name: _with_bytes(one) for name, one in value.items()}
    return [_with_bytes(one) for one in value] if isinstance(value, list) else value


def _size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


class _Child:
    """One child and the pipes to it. It gets no environment but what Python and Arrow need."""

    def __init__(self) -> None:
        own = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ}
        own["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, [own.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "warehouse.foreign_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**own, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request."""
        with suppress(BrokenPipeError):  # why it died is found when its reply is read
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def frame(self, path: Path, limits: dict[str, int], room: int) -> bytearray:
        """The next frame. Raises RequestError where the child dies, is silent for too long, or announces more than there is room for."""
        assert self._process.stdout is not None
        head = self._read(self._process.stdout, 4)
        if len(head) == 4:
            size = struct.unpack(">I", head)[0]
            if size > room:
                packed, most = f"{_size_of(path) / MIB:,.1f} MiB", f"more than {limits['room'] // MIB:,} MiB"
                raise Oversized(f"{path} ({packed}) unpacks to {most}, and at most that is read: cut it into parts.")
            data = self._read(self._process.stdout, size)
            if len(data) == size:
                return data
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        raise _died(path, self._process.poll(), limits)

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def _read(self, pipe: IO[bytes], size: int) -> bytearray:
        """`size` bytes, fewer where the child ends or is silent."""
        data = bytearray()
        while len(data) < size and select.select([pipe], [], [], SILENCE_SECONDS)[0]:
            piece = os.read(pipe.fileno(), min(size - len(data), MIB))
            if not piece:
                break
            data += piece
        return data


def _died(path: Path, status: int | None, limits: dict[str, int]) -> RequestError:
    if status is None:
        return Oversized(f"{path} has not been read any further for {SILENCE_SECONDS:.0f} seconds: check the disk, or cut it into parts.")
    if status == -signal.SIGXCPU:
        return Oversized(f"{path} takes more than {limits['seconds']} seconds of processor time to read: cut it into parts.")
    memory = f"more than {limits['memory'] // MIB:,} MiB of memory"
    if status == MEMORY_STATUS:
        return Oversized(f"{path} needs {memory} to be read: cut it into parts.")
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return Oversized(f"the reader of {path} crashed ({name}): the file is damaged, or needs {memory}.")


class _Pool:
    """Idle children, shared by all threads and not by forks: two readers of one pipe would get each other's rows."""

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def take(self) -> _Child:
        """An idle child, or a new one."""
        with suppress(queue.Empty):
            while True:
                child = self._idle.get_nowait()
                if child.alive:
                    return child
        return _Child()

    def give(self, child: _Child) -> None:
        """Keep a child for the next file."""
        try:
            self._idle.put_nowait(child)
        except queue.Full:
            child.end()

    def close(self) -> None:
        """End all idle children."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()

    def _forget(self) -> None:
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue(KEPT_CHILDREN)


_pool = _Pool()
