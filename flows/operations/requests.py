"""Requests to the process at work in a home: small files in `HOME/requests`, which it looks for four times a second and takes away.

Whoever asks waits until the file is gone. A request names the process that it is meant for: no later one does what this one was asked.
Each is a row of `failures` of the stage `requests` (`pause`, `resume`, `limit`), also one that cannot be read (`invalid`) and one that was
left by somebody who died before it was heard (`unheard`).
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from pydantic import Field, FiniteFloat, PositiveInt, ValidationError, model_validator

from flows.home import Home
from flows.operations.control import Control, Order
from flows.progress import Progress, read_progress
from warehouse import Failure
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.settings import Section, first_error

log = logging.getLogger("flywheel")

STAGE = "requests"
LISTEN_SECONDS = 0.25
PATIENCE_SECONDS = 30.0
"""How long whoever asks waits to be heard: a process that imports torch on a busy machine is silent for some seconds."""
MOST_BYTES = 4096
"""Of a request; a longer file is none."""
MOST_PLACES = 1_000_000
"""That a limit may name."""
MOST_REQUESTS = 100
"""Files that are looked at in one look."""


class ControlRequest(Section):
    """What is asked of `process`, and when, in seconds since 1970. A `limit` has a number, the others have none."""

    order: Order
    process: PositiveInt
    asked: FiniteFloat
    limit: int | None = Field(default=None, ge=1, le=MOST_PLACES)

    @model_validator(mode="after")
    def _check_limit(self) -> ControlRequest:
        if (self.order is Order.limit) != (self.limit is not None):
            raise ValueError("a limit has a number, and nothing else has")
        return self


def ask(home: Home, order: Order, limit: int | None = None, patience_seconds: float = PATIENCE_SECONDS) -> Progress:
    """Ask the process at work in `home`, and wait until it has heard; returns its progress before.

    Raises:
        RequestError: nothing runs there, or what runs did not hear in time or ended meanwhile; the request is taken back then.
    """
    home.load()
    working = _at_work(home)
    if working is None:
        raise RequestError(f"nothing runs in {home.root}, so there is nothing to {order}: `flywheel run --home {home.root}` goes on.")
    home.requests.mkdir(exist_ok=True)
    file = home.requests / f"{time.time_ns()}-{os.getpid()}.json"
    with drafted(file) as draft:
        request = ControlRequest(order=order, process=working.process, asked=time.time(), limit=limit)
        draft.write_text(request.model_dump_json())
    try:
        _wait_until_heard(home, file, working.process, time.monotonic() + patience_seconds)
    finally:
        file.unlink(missing_ok=True)
    return working


def _at_work(home: Home) -> Progress | None:
    """The record of the process at work; None where there is none, or it was killed or hangs."""
    progress = read_progress(home.progress)
    return None if progress is None or progress.is_stale(time.time()) else progress


def _wait_until_heard(home: Home, file: Path, process: int, deadline: float) -> None:
    while file.exists():
        working = _at_work(home)
        if working is None or working.process != process:
            raise RequestError(f"process {process} in {home.root} ended before it heard; nothing was asked of another.")
        if time.monotonic() > deadline:
            raise RequestError(f"process {process} in {home.root} has not heard; it hangs, or the disk is full: `flywheel top` shows it.")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class _Heard:
    """A file of the folder as it was read: the request that it holds, or why it holds none."""

    file: Path
    request: ControlRequest | None
    fault: str = ""


class RequestListener:
    """Hears requests in a thread of its own until it is closed: `obeyed` is called when the control has changed, then they are recorded."""

    def __init__(
        self,
        folder: Path,
        control: Control,
        obeyed: Callable[[], None],
        record: Callable[[Failure], None],
        at_work: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`at_work`: the run at work and its step, for the record."""
        self._folder = folder
        self._control = control
        self._obeyed = obeyed
        self._record = record
        self._at_work = at_work
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop hearing; what has not been heard stays, to be recorded by the next process."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self.listen()
        while not self._ended.wait(LISTEN_SECONDS):
            self.listen()

    def listen(self) -> None:
        """Hear what is there, in the order in which it was asked."""
        try:
            files = sorted(each for each in self._folder.iterdir() if each.suffix == ".json" and not each.is_dir())[:MOST_REQUESTS]
        except OSError:  # nobody has asked yet
            return
        for file in files:
            try:
                self._hear(_read(file))
            except (OSError, duckdb.Error) as error:  # obeyed or not, the wheel goes on
                log.warning("a request in %s could not be recorded: %s", self._folder, str(error)[:300])

    def _hear(self, heard: _Heard) -> None:
        """Obey a request, record it, and take it away: then whoever asked goes on."""
        request = heard.request
        try:
            if request is None:
                self._note("invalid", f"{heard.file.name} holds no request: {heard.fault}", {})
            elif request.process != os.getpid():
                self._note("unheard", f"{request.order} was asked of process {request.process}, which is gone", _facts(request))
            else:
                self._control.obey(request.order, request.limit)
                self._obeyed()
                self._note(request.order.value, _sentence(request), _facts(request))
        finally:
            heard.file.unlink(missing_ok=True)

    def _note(self, kind: str, sentence: str, facts: dict[str, Any]) -> None:
        log.info("%s", sentence)
        self._record(Failure(STAGE, kind, sentence, {**facts, **self._at_work()}))


def _sentence(request: ControlRequest) -> str:
    if request.order is Order.limit:
        return f"asked to limit: {request.limit} trajectories at most run side by side"
    if request.order is Order.pause:
        return "asked to pause: what is under way ends, nothing new begins"
    return "asked to resume: it goes on"


def _facts(request: ControlRequest) -> dict[str, Any]:
    facts = {"process": request.process, "asked": request.asked}
    return facts if request.limit is None else {**facts, "limit": request.limit}


def _read(file: Path) -> _Heard:
    """Read a file that anybody may have put there."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # reading a pipe would wait for ever
            return _Heard(file, None, "it is no file")
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            return _Heard(file, None, f"it has more than {MOST_BYTES} bytes")
        return _Heard(file, ControlRequest.model_validate_json(content, strict=True))
    except ValidationError as error:
        return _Heard(file, None, first_error(error)[:200])
