"""Control of the running process in a home: its progress record, and requests to pause, resume or limit it.

The progress record is a small file, rewritten every second, that `flywheel top` reads. A run removes it at its end; a killed run leaves it
to become stale. Requests are small files in `HOME/requests` that the process polls four times a second and removes, for which the sender
waits. A request names its process, so no later process obeys it. Each is recorded in `failures` under the stage `requests` (`pause`,
`resume`, `limit`; `invalid` if unreadable, `unheard` if its process was gone).
"""

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
"""Interval at which a paused stage wakes, so that cancellation and timeouts reach it."""


class Order(StrEnum):
    pause = "pause"
    """Start nothing new; running trajectories finish, and the stage waits after its step or batch."""
    resume = "resume"
    limit = "limit"
    """Limit concurrent trajectories."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """Time of the pause in seconds since the epoch, and the limit on concurrent trajectories."""

    paused_since: float | None = None
    limit: int | None = None

    @property
    def admitted(self) -> int | None:
        """Allowed concurrent trajectories; None: as configured."""
        return self.limit if self.paused_since is None else 0


class Control:
    """Control state of a process. One thread changes it, others wait on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going = threading.Event()
        self._going.set()
        self._state = ControlState()
        self._stopped = 0.0
        self._before = 0.0

    @property
    def state(self) -> ControlState:
        return self._state

    @property
    def paused_seconds(self) -> float:
        with self._lock:
            return self._before + (0.0 if self._going.is_set() else time.monotonic() - self._stopped)

    def obey(self, order: Order, limit: int | None = None) -> None:
        """Apply a request. A repeated pause or resume changes nothing."""
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
        while not self._going.wait(LOOK_SECONDS):
            pass


EVERY_SECONDS = 1.0
STALE_SECONDS = 15.0
"""Age at which a record counts as left by a killed or hanging process."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The running stage and its progress.

    `step` and `steps` count optimizer steps, or trajectories in evaluation and sampling; None if unknown. `first_step` is the first step
    recorded by this process, at time `began` in seconds since the epoch.
    """

    run: str
    stage: str
    wheel_turn: int
    began: float
    first_step: int = 0
    step: int | None = None
    steps: int | None = None
    resumed: bool = False
    """Whether an earlier process began the stage."""
    figures: dict[str, float] = field(default_factory=dict)


def position(stage: StageProgress) -> str:
    """Describe a stage's progress; before its first step ends, as running."""
    unit = "trajectory" if stage.stage in ("eval", "rollout") else "step"
    of = f" of {stage.steps:,}" if stage.steps else ""
    if stage.step is not None:
        return f"{unit} {stage.step:,}{of}"
    if stage.resumed:
        return "resumed"
    return f"{unit} 1{of} running" if stage.stage in ("cpt", "sft", "rl", "eval", "rollout") else "running"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress record of a process: time written (seconds since the epoch), work, iterations and control state."""

    process: int
    written: float
    turns: int | None = None
    stage: StageProgress | None = None
    engines: PoolFigures | None = None
    tokens_per_second: float = 0.0
    environment_figures: EnvironmentPoolFigures | None = None
    control: ControlState = field(default_factory=ControlState)

    def is_stale(self, now: float) -> bool:
        """Return whether the writer was killed or hangs."""
        return now - self.written > STALE_SECONDS


_ADAPTER: TypeAdapter[Progress] = TypeAdapter(Progress)


def read_progress(file: Path) -> Progress | None:
    """Read the record in `file`; None if there is none or it is from another version."""
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class ProgressWriter:
    """Writes the result of `look` every second in its own thread until closed. Calls `show` with the stage, and with None at the end."""

    def __init__(self, file: Path, look: Callable[[], Progress], show: Callable[[StageProgress | None], None] = lambda stage: None) -> None:
        self._file = file
        self._look = look
        self._show = show
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
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
                draft.replace(self._file)  # atomic for readers
            except (OSError, RuntimeError):  # a full disk, or a set that changed while being iterated: retry in a second
                continue


log = logging.getLogger("flywheel")

STAGE = "requests"
LISTEN_SECONDS = 0.25
PATIENCE_SECONDS = 30.0
"""Timeout of a request; importing torch on a busy machine delays the answer by some seconds."""
MOST_BYTES = 4096
"""Maximum size of a request file."""
MOST_PLACES = 1_000_000
"""Maximum value of a limit."""
MOST_REQUESTS = 100
"""Maximum number of files read at once."""


class ControlRequest(Section):
    """A request to `process`, with its time in seconds since the epoch. Only `limit` has a number."""

    order: Order
    process: PositiveInt
    asked: FiniteFloat
    limit: int | None = Field(default=None, ge=1, le=MOST_PLACES)

    @model_validator(mode="after")
    def _check_limit(self) -> ControlRequest:
        if (self.order is Order.limit) != (self.limit is not None):
            raise ValueError("limit needs a number, and other orders take none")
        return self


def ask(home: Home, order: Order, limit: int | None = None, patience_seconds: float = PATIENCE_SECONDS) -> Progress:
    """Send a request to the running process of `home` and wait until it is obeyed. Return the process's previous progress.

    Raises:
        RequestError: Nothing runs there, or the process ended or did not answer in time; the request is withdrawn.
    """
    home.load()
    working = _at_work(home)
    if working is None:
        raise RequestError(
            f"nothing runs in {home.root}, so there is nothing to {order}: `flywheel run --home {home.root}` starts or resumes a run."
        )
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
    """Return the progress record of the running process, or None if there is none or it is stale."""
    progress = read_progress(home.progress)
    return None if progress is None or progress.is_stale(time.time()) else progress


def _wait_until_heard(home: Home, file: Path, process: int, deadline: float) -> None:
    while file.exists():
        working = _at_work(home)
        if working is None or working.process != process:
            raise RequestError(f"process {process} in {home.root} ended before it answered; the request is withdrawn.")
        if time.monotonic() > deadline:
            raise RequestError(f"process {process} in {home.root} does not answer; it hangs, or the disk is full: see `flywheel top`.")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class _Heard:
    """A request file: its request, or why it is invalid."""

    file: Path
    request: ControlRequest | None
    fault: str = ""


class RequestListener:
    """Obeys requests in its own thread until closed. Calls `obeyed` after a change, then records the request."""

    def __init__(
        self,
        folder: Path,
        control: Control,
        obeyed: Callable[[], None],
        record: Callable[[Failure], None],
        at_work: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`at_work` returns the running stage's run id and step for the record."""
        self._folder = folder
        self._control = control
        self._obeyed = obeyed
        self._record = record
        self._at_work = at_work
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. The next process records the remaining requests."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self.listen()
        while not self._ended.wait(LISTEN_SECONDS):
            self.listen()

    def listen(self) -> None:
        try:
            files = sorted(each for each in self._folder.iterdir() if each.suffix == ".json" and not each.is_dir())[:MOST_REQUESTS]
        except OSError:  # no request yet
            return
        for file in files:
            try:
                self._hear(_read(file))
            except (OSError, duckdb.Error) as error:  # the run continues in any case
                log.warning("a request in %s could not be recorded: %s", self._folder, str(error)[:300])

    def _hear(self, heard: _Heard) -> None:
        """Obey a request, record it, and remove its file, which releases the sender."""
        request = heard.request
        try:
            if request is None:
                self._note("invalid", f"{heard.file.name} is not a valid request: {heard.fault}", {})
            elif request.process != os.getpid():
                self._note("unheard", f"{request.order} was sent to process {request.process}, which has ended", _facts(request))
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
        return f"limited to {request.limit} concurrent trajectories"
    if request.order is Order.pause:
        return "paused: running trajectories finish, nothing new starts"
    return "resumed"


def _facts(request: ControlRequest) -> dict[str, Any]:
    facts = {"process": request.process, "asked": request.asked}
    return facts if request.limit is None else {**facts, "limit": request.limit}


def _read(file: Path) -> _Heard:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # reading a pipe would block forever
            return _Heard(file, None, "it is not a regular file")
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            return _Heard(file, None, f"it has more than {MOST_BYTES} bytes")
        return _Heard(file, ControlRequest.model_validate_json(content, strict=True))
    except ValidationError as error:
        return _Heard(file, None, first_error(error)[:200])
