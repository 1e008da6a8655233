"""Run Prefect as a library, with its database inside the home and telemetry and log lines off.

If PREFECT_API_URL names a server, it is used unchanged. Otherwise flows start Prefect's temporary server, which ends with them. If it dies,
it is restarted on the same port and database: existing clients retry for about a minute, and a server starts in ten seconds. New clients,
which Prefect creates for each nested flow, do not retry: call `wait_until_up` before.
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
"""Start-up timeout of the server."""
PORT_TAKEN = 3
"""Exit status of a server whose port is taken; Prefect then tries another."""


@contextmanager
def quiet_prefect(home: Path, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Configure Prefect for the command line and start the reaper, which ends child processes. `meanwhile` runs during server start-up."""
    start_reaper()
    if PREFECT_API_URL.value():
        meanwhile()
        yield
        return
    folder = (home / "prefect").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        PREFECT_HOME: folder,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,  # each flow would end up to a second later, waiting for the thread that sends heartbeats
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
    """Make child processes started in the block ignore Ctrl-C, so that flows can still report to the server."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def kept_up() -> Iterator[None]:
    """Restart this process's temporary server whenever it dies during the block."""
    ended = threading.Event()
    # in this context, so that the new server has the same settings and database
    thread = threading.Thread(target=copy_context().run, args=(_watch, ended), name="prefect-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_until_up() -> None:
    """Wait for a restarted temporary server; returns immediately if there is none or it answers."""
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
            log.warning("Prefect's temporary server died with status %d and is restarted", process.returncode)
            with uninterrupted():
                server.server_process = server._run_uvicorn_command()
