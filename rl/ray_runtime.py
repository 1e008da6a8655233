"""Start Ray locally or connect to a cluster; shut down only what was started here.

`make_folder` puts the process id into the names of temporary folders, such as `flywheel-ray-4711-…`. The next call removes folders whose
process no longer exists, since a killed process leaves its own behind.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import NonNegativeInt, PositiveFloat

from rl.hardware import GIB
from warehouse.settings import Section

if TYPE_CHECKING:
    from ray.job_config import JobConfig

REACH_SECONDS = 5.0
"""Timeout of a connection to a cluster's machine, in seconds; Ray's own client tries for half a minute."""
CLIENT_PORT = 10_001
"""Default port of Ray's client."""
_FOLDER_NAME = re.compile(r"flywheel-[a-z]+-(\d+)-\w+")


class RayConfig(Section):
    """Ray: on a cluster or on this machine."""

    address: str | None = None
    """Cluster address, such as `ray://head:10001` or `auto`; None starts Ray locally."""
    gpus: NonNegativeInt | None = None
    """GPUs of this machine; None detects them. A number lets `--dry-run` check for another machine."""
    object_store_gib: PositiveFloat = 0.5
    """Shared memory of the object store, in GiB; it must hold the search index."""


class SearchPath(list[str]):
    """Module search path of workers: of the folders that Ray adds, only those on this process's own search path.

    Ray would otherwise prepend the current folder, and a `transformers.py` there would shadow the package in every worker.
    """

    def extend(self, folders: Iterable[str]) -> None:
        """Add those of `folders` that are on this process's search path."""
        super().extend(folder for folder in folders if folder in sys.path)


def job_config() -> JobConfig:
    """Ray's job configuration with the workers' module search path."""
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = SearchPath()
    return config


class RayRuntime:
    """Ray, started unless it is already running; `close` shuts down what was started here."""

    def __init__(self, config: RayConfig, cpus: float) -> None:
        """Connect, or start locally with all GPUs and enough CPUs for actors that reserve `cpus`.

        CPUs are a reservation, not a limit: engines, environments and learner share the cores.

        Raises:
            ConnectionError: Ray does not start in time, or does not answer at the address.
        """
        import ray

        self._folder: Path | None = None
        self._mine = not ray.is_initialized()
        if not self._mine:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray would lower its workers' priority by 15, which starves engines next to other load.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # This logger only reports that the cluster uses token authentication, as intended.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with _keep_sigterm():
            self._begin(config, cpus)

    def _begin(self, config: RayConfig, cpus: float) -> None:
        import ray

        if config.address is not None:
            job = None if config.address.startswith("ray://") else job_config()  # a Ray client does not pass the search path on
            ray.init(address=config.address, log_to_driver=False, logging_level=logging.WARNING, job_config=job)  # type: ignore[arg-type]
            return
        # Ray puts Unix sockets into this folder; their paths may have at most 107 bytes.
        self._folder = make_folder("ray", Path("/tmp"))
        with _start_fault():
            ray.init(
                address="local",  # otherwise RAY_ADDRESS in the environment would override the configuration
                num_cpus=max(os.cpu_count() or 1, int(cpus + 1)),
                num_gpus=config.gpus,
                object_store_memory=int(config.object_store_gib * GIB),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _temp_dir=str(self._folder),
                job_config=job_config(),
            )

    def close(self) -> None:
        """Shut Ray down if it was started here."""
        import ray

        if self._mine and ray.is_initialized():
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def reach(address: str, seconds: float = REACH_SECONDS) -> None:
    """Check that something listens at an address.

    An address without host, or without port and not of scheme `ray://`, such as `auto`, is not tried.

    Raises:
        OSError: nothing listens.
        ValueError: the address is malformed.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    port = place.port or (CLIENT_PORT if place.scheme == "ray" else None)
    if place.hostname is not None and port is not None:
        socket.create_connection((place.hostname, port), timeout=seconds).close()


def make_folder(what: str, place: Path) -> Path:
    """Create a temporary folder in `place`, named after `what` (lower-case letters), and remove leftovers of dead processes."""
    remove_leftovers(place)
    return Path(tempfile.mkdtemp(prefix=f"flywheel-{what}-{os.getpid()}-", dir=place))


def remove_leftovers(place: Path) -> None:
    """Remove the temporary folders in `place` whose process has ended."""
    for folder in place.glob("flywheel-*"):
        named = _FOLDER_NAME.fullmatch(folder.name)
        if named and not Path("/proc", named[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _start_fault() -> Iterator[None]:
    """Convert Ray's start-up timeouts, as on a busy machine, to `ConnectionError`.

    Ray raises a bare `Exception` for them, or a `RuntimeError` if one of its processes has not reported its port yet.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception and not (isinstance(error, RuntimeError) and str(error).startswith("Timed out waiting for file")):
            raise
        raise ConnectionError(f"Ray did not start on this machine: {error}") from error


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Restore this process's SIGTERM handler, which `ray.init` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
