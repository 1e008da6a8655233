"""Prefect as a library: its database inside the home, its telemetry off, its log lines off: what fails is raised.

Where PREFECT_API_URL names a server, that server is used and its settings are left alone. Otherwise the flows bring up Prefect's
own temporary server, which is kept up as long as they run and ends with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_LOGGING_LEVEL,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from flows.guardian import start_guardian
from flows.prefect_server import kept_up


@contextmanager
def quiet_prefect(home: Path) -> Iterator[None]:
    """Settings for flows run from our command line; from here on, what this process starts ends with it."""
    start_guardian()
    if PREFECT_API_URL.value():
        yield
        return
    folder = (home / "prefect").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        PREFECT_HOME: folder,
        PREFECT_LOGGING_LEVEL: "CRITICAL",
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120,
    }
    with temporary_settings(settings), kept_up():
        yield
