"""Prefect as a library: its database inside the home, its telemetry off, its log lines off: what fails is raised.

Where PREFECT_API_URL names a server, that server is used and its settings are left alone. Otherwise the flows bring up Prefect's
own temporary server, which is kept up as long as they run and ends with them: where it dies it is started again, on its port and over its
database. A client that has spoken to it before tries a call again for about a minute, and a server is up in ten seconds. Without this a run
whose server died would try each of its last calls for so long, and then fail over something that it could do without. A new client, which
Prefect makes for each flow within a flow, does not try again: before one of those, `wait_until_up`.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import httpx
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_HOME,
    PREFECT_LOGGING_LEVEL,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from flows.runtime import start_reaper

log = logging.getLogger("flywheel")

LOOK_SECONDS = 1.0
UP_SECONDS = 120.0
"""How long a server that was started again may take until it answers."""
PORT_TAKEN = 3
"""Exit status of a server whose port somebody else has: Prefect itself tries another."""


@contextmanager
def quiet_prefect(home: Path, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Settings for flows run from our command line; from here on, what this process starts ends with it.

    `meanwhile` is called while the server starts.
    """
    start_reaper()
    if PREFECT_API_URL.value():
        meanwhile()
        yield
        return
    folder = (home / "prefect").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        PREFECT_HOME: folder,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,  # each flow would wait up to a second at its end for the thread that sends them
        PREFECT_LOGGING_LEVEL: "CRITICAL",
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120,
    }
    with temporary_settings(settings), kept_up():
        with ThreadPoolExecutor(1, "prefect-start") as starting:
            started = starting.submit(copy_context().run, _start_server)
            meanwhile()
            started.result()
        yield


def _start_server() -> None:
    with uninterrupted():
        SubprocessASGIServer().start(int(UP_SECONDS))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """What this thread starts within the block does not hear Ctrl-C: a server that ended by it would leave its flows without one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def kept_up() -> Iterator[None]:
    """As long as the block lasts, the temporary server that flows of this process bring up is started again whenever it dies."""
    ended = threading.Event()
    # In this context: the new server is to have the settings, and with them the database, of the old one.
    thread = threading.Thread(target=copy_context().run, args=(_watch, ended), name="prefect-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_until_up() -> None:
    """Wait for the temporary server where it has just been started again; return at once where there is none, or it answers."""
    server, deadline = SubprocessASGIServer(), time.monotonic() + UP_SECONDS
    while server.running and not _answers(server) and time.monotonic() < deadline:
        time.sleep(0.2)


def _answers(server: SubprocessASGIServer) -> bool:
    try:
        return httpx.get(f"{server.api_url}/health", timeout=5.0).is_success
    except httpx.TransportError:
        return False


def _watch(ended: threading.Event) -> None:
    while not ended.wait(LOOK_SECONDS):
        server = SubprocessASGIServer()
        process = server.server_process if server.running else None
        if process is not None and process.poll() not in (None, PORT_TAKEN):
            log.warning("Prefect's temporary server died with status %d and is started again", process.returncode)
            with uninterrupted():
                server.server_process = server._run_uvicorn_command()
