"""Parse untrusted files in a child process with limited memory and CPU time (`foreign_child.py`).

The child returns plain rows as JSON, so a file that crashes or exploits a parser affects neither this process nor runs code in it: it
becomes a one-sentence error that names the file. Children are started on demand, reused for later files, and killed after any failure. The
rows of a file may take at most two hundred times its size, and at least 64 MiB.
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
"""Row bytes allowed for any file, and the maximum for a compressed one."""
MOST_GROWTH, MOST_PLAIN_GROWTH = 200, 4
"""Row bytes allowed per file byte: up to `MOST_BYTES`, and beyond."""
FREE_VALUES, VALUES_A_BYTE = 2_000_000, 4
CHILD_MEMORY, MEMORY_A_BYTE = 2048 * MIB, 8
CHILD_SECONDS, SECONDS_A_MIB = 120, 20
"""CPU seconds allowed for any file, and per MiB of file."""
SILENCE_SECONDS = 600.0
"""Maximum wall-clock seconds between two frames, for a child that waits for something other than the CPU."""
KEPT_CHILDREN = 2
HUB = "hf:"
"""Prefix of data set names on the Hugging Face hub."""
KINDS = "a .json, .jsonl, .csv, .tsv (each also .gz), .parquet or .arrow file, a folder saved by `datasets`, or hf:NAME[:CONFIG][@SPLIT]"
_MARK = BYTES_MARK.encode("utf-8", "surrogatepass")


class Oversized(RequestError):
    """A file exceeds a limit on memory, time or content."""


@dataclass(frozen=True, slots=True)
class Delimiting:
    """Delimiter and encoding of a CSV file; empty values are detected."""

    delimiter: str = ""
    encoding: str = ""


GUESSED = Delimiting()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `path`: its value, or the fault if it has none. `line` counts text lines or table rows from 1."""

    path: Path
    line: int
    text: str
    value: Any = None
    fault: str | None = None


def is_saved(path: Path) -> bool:
    """Whether `path` is a folder saved by `datasets`."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def room_for(size: int) -> int:
    """Maximum row bytes of a file of `size` bytes."""
    return max(FREE_BYTES, min(MOST_BYTES, MOST_GROWTH * size), MOST_PLAIN_GROWTH * size)


def open_table(path: Path, form: Delimiting = GUESSED, text: str = "") -> tuple[dict[str, Any], Iterator[Row]]:
    """Open a table: return its head (`format`, and `columns` unless JSON) and rows. Outside text formats, a row's `text` is its value's.

    Args:
        form: delimiter and encoding of CSV; the head contains the detected ones.
        text: `json` to parse text of any file name as JSON.

    Raises:
        RequestError: the file is missing or unreadable; also raised while iterating rows.
    """
    if not path.exists():
        raise RequestError(f"there is no file {path}; choose {KINDS}.")
    if path.is_dir() and not is_saved(path):
        raise RequestError(f"the folder {path} is not a dataset saved by `datasets`; choose {KINDS}.")
    return read_foreign("table", path, delimiter=form.delimiter, encoding=form.encoding, text=text, known=KINDS)


def read_foreign(kind: str, path: Path, **options: str) -> tuple[dict[str, Any], Iterator[Row]]:
    """Have a child parse a file; return its head and rows as they arrive. Kinds are the keys of `_READERS` in `foreign_child.py`.

    Raises:
        RequestError: the child rejects the file or crashes; also raised while iterating rows.
    """
    frames = _frames(kind, path, options)
    head = next(frames)
    return head["head"], _rows(frames, path)


def _rows(frames: Iterator[dict[str, Any]], path: Path) -> Iterator[Row]:
    for frame in frames:
        for line, fault, text, value in frame["rows"]:
            yield Row(path, line, text or str(value)[:500], value, fault)


def _frames(kind: str, path: Path, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Parsed frames of a reply; the child returns to the pool if it reached the end of the file."""
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
                raise RequestError(f"{path} has a row that is nested too deeply: flatten it.") from error
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
    """A child process and its pipes, with a minimal environment."""

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
        return self._process.poll() is None

    def ask(self, request: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # frame() reports why it died
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def frame(self, path: Path, limits: dict[str, int], room: int) -> bytearray:
        """Next frame. Raises RequestError if the child dies, stays silent too long, or announces more than `room`."""
        assert self._process.stdout is not None
        head = self._read(self._process.stdout, 4)
        if len(head) == 4:
            size = struct.unpack(">I", head)[0]
            if size > room:
                packed, most = f"{_size_of(path) / MIB:,.1f} MiB", f"more than {limits['room'] // MIB:,} MiB"
                raise Oversized(f"{path} ({packed}) unpacks to {most}; at most that is read: split it.")
            data = self._read(self._process.stdout, size)
            if len(data) == size:
                return data
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        raise _died(path, self._process.poll(), limits)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self, pipe: IO[bytes], size: int) -> bytearray:
        data = bytearray()
        while len(data) < size and select.select([pipe], [], [], SILENCE_SECONDS)[0]:
            piece = os.read(pipe.fileno(), min(size - len(data), MIB))
            if not piece:
                break
            data += piece
        return data


def _died(path: Path, status: int | None, limits: dict[str, int]) -> RequestError:
    if status is None:
        return Oversized(f"reading {path} made no progress for {SILENCE_SECONDS:.0f} seconds: check the disk, or split the file.")
    if status == -signal.SIGXCPU:
        return Oversized(f"{path} takes more than {limits['seconds']} seconds of CPU time to read: split it.")
    memory = f"more than {limits['memory'] // MIB:,} MiB of memory"
    if status == MEMORY_STATUS:
        return Oversized(f"{path} needs {memory} to be read: split it.")
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return Oversized(f"the reader of {path} crashed ({name}): the file is damaged, or needs {memory}.")


class _Pool:
    """Idle children, shared by all threads but not across forks, which would mix up the rows of one pipe."""

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def take(self) -> _Child:
        with suppress(queue.Empty):
            while True:
                child = self._idle.get_nowait()
                if child.alive:
                    return child
        return _Child()

    def give(self, child: _Child) -> None:
        try:
            self._idle.put_nowait(child)
        except queue.Full:
            child.end()

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()

    def _forget(self) -> None:
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue(KEPT_CHILDREN)


_pool = _Pool()
