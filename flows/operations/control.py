"""The process at work in a home: its progress record, and user requests to pause, resume or limit it.

The progress record is one small file, rewritten each second, that `flywheel top` reads. A run that ends removes it; a killed one leaves it,
which its age shows. Requests are small files in `HOME/requests` that the process polls four times a second and removes; the sender waits
for that. A request names the process it is meant for, so no later process obeys it. Each is a row of `failures` of the stage `requests`
(`pause`, `resume`, `limit`; `invalid` if it cannot be read, `unheard` if its process was gone)."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
from pydantic import Field, FiniteFloat, PositiveInt, TypeAdapter, ValidationError, model_validator

from flows.home import Home
from rl.engines.base import PoolFigures
from rl.env_pool.circuit_breaker import EnvironmentPoolFigures
from warehouse import Failure
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.settings import Section, first_error

LOOK_SECONDS = 1.0
"""Pause between two looks of whoever waits: a stage that is cancelled or takes too long is told so between them."""


class Order(StrEnum):
    """What may be asked."""

    pause = "pause"
    """Nothing new begins; trajectories under way end, and a stage waits behind its step or batch."""
    resume = "resume"
    limit = "limit"
    """At most so many trajectories run side by side."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """What holds at this moment: since when the wheel is paused, in seconds since 1970, and the limit on its trajectories."""

    paused_since: float | None = None
    limit: int | None = None

    @property
    def admitted(self) -> int | None:
        """How many trajectories may run side by side; None is as many as the configuration says."""
        return self.limit if self.paused_since is None else 0


class Control:
    """The state of a process, to be changed by one thread and waited on by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going = threading.Event()
        self._going.set()
        self._state = ControlState()
        self._stopped = 0.0
        self._before = 0.0

    @property
    def state(self) -> ControlState:
        """What holds now."""
        return self._state

    @property
    def paused_seconds(self) -> float:
        """How long it has been paused in all."""
        with self._lock:
            return self._before + (0.0 if self._going.is_set() else time.monotonic() - self._stopped)

    def obey(self, order: Order, limit: int | None = None) -> None:
        """Do as is asked; a pause of what is paused and the resumption of what is not change nothing."""
        with self._lock:
            if order is Order.limit:
                self._state = ControlState(self._state.paused_since, limit)
            elif order is Order.pause and self._going.is_set():
                self._going.clear()
                self._stopped = time.monotonic()
                self._state = ControlState(time.time(), self._state.limit)
            elif order is Order.resume and not self._going.is_set():
                self._before += time.monotonic() - self._stopped
                self._going.set()
                self._state = ControlState(None, self._state.limit)

    def wait(self) -> None:
        """Wait as long as it is paused."""
        while not self._going.wait(LOOK_SECONDS):
            pass


EVERY_SECONDS = 1.0
STALE_SECONDS = 15.0
"""A record older than this is of a process that was killed or hangs."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The stage at work: its run, and how far it is.

    `step` of `steps` are optimiser steps, or trajectories in evaluation and sampling; None where they are not known. `first_step` is the
    first one that this process recorded and `began` when it did, in seconds since 1970, so that the rate is its own.
    """

    run: str
    stage: str
    wheel_turn: int
    began: float
    first_step: int = 0
    step: int | None = None
    steps: int | None = None
    resumed: bool = False
    """Whether the stage was begun before, by a process that stopped."""
    figures: dict[str, float] = field(default_factory=dict)


def position(stage: StageProgress) -> str:
    """How far a stage is, in words; before its first step has ended, that this is running, as long as engines take to start too."""
    unit = "trajectory" if stage.stage in ("eval", "rollout") else "step"
    of = f" of {stage.steps:,}" if stage.steps else ""
    if stage.step is not None:
        return f"{unit} {stage.step:,}{of}"
    if stage.resumed:
        return "goes on"
    return f"{unit} 1{of} running" if stage.stage in ("cpt", "sft", "rl", "eval", "rollout") else "running"


@dataclass(frozen=True, slots=True)
class Progress:
    """One record: who wrote it and when, in seconds since 1970, what is at work, how many turns the wheel is to make, what it was asked."""

    process: int
    written: float
    turns: int | None = None
    stage: StageProgress | None = None
    engines: PoolFigures | None = None
    tokens_per_second: float = 0.0
    environment_figures: EnvironmentPoolFigures | None = None
    control: ControlState = field(default_factory=ControlState)

    def is_stale(self, now: float) -> bool:
        """Whether its writer must have been killed, or hangs."""
        return now - self.written > STALE_SECONDS


_ADAPTER: TypeAdapter[Progress] = TypeAdapter(Progress)


def read_progress(file: Path) -> Progress | None:
    """The record in `file`; None where there is none, or one of another version of this program."""
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class ProgressWriter:
    """Writes what `look` sees each second, in a thread of its own, until it is closed; `show` is told the stage, and None at the end."""

    def __init__(self, file: Path, look: Callable[[], Progress], show: Callable[[StageProgress | None], None] = lambda stage: None) -> None:
        self._file = file
        self._look = look
        self._show = show
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and take the file away."""
        self._ended.set()
        self._thread.join()
        self._show(None)
        self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        draft = self._file.with_suffix(".draft")
        while not self._ended.wait(EVERY_SECONDS):
            try:
                seen = self._look()
                self._show(seen.stage)
                draft.write_bytes(_ADAPTER.dump_json(seen))
                draft.replace(self._file)  # a reader sees the old record or the new one
            except (OSError, RuntimeError):  # a full disk, or a set that grew while it was counted: the next second may do better
                continue


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
