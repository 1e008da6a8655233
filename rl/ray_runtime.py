"""Ray: on this machine by default, on a cluster by its address. What was started here is shut down here, and nothing else.

`make_folder` names temporary folders after the process that made them: `flywheel-ray-4711-…` belongs to process 4711. A killed process
removes nothing, so the next one to start removes the folders whose process has ended, and no others.
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
"""Timeout of a connection to a cluster's machine; Ray's own client would try for half a minute."""
CLIENT_PORT = 10_001
"""Port of Ray's client unless the address names another."""
_FOLDER_NAME = re.compile(r"flywheel-[a-z]+-(\d+)-\w+")


class RayConfig(Section):
    """Ray: a cluster, or this machine."""

    address: str | None = None
    """Cluster address, such as `ray://head:10001` or `auto`; None starts Ray locally."""
    gpus: NonNegativeInt | None = None
    """GPUs of this machine; None: detect. A number lets `--dry-run` check another machine."""
    object_store_gib: PositiveFloat = 0.5
    """Shared memory of the object store; must hold the search index."""


class SearchPath(list[str]):
    """Folders in which workers look for modules: of those that Ray adds, only the ones that this process searches too.

    Ray would always put the current folder in front: a `transformers.py` there would become every worker's.
    """

    def extend(self, folders: Iterable[str]) -> None:
        """Add the folders that this process searches."""
        super().extend(folder for folder in folders if folder in sys.path)


def job_config() -> JobConfig:
    """Ray's job configuration, with the folders in which its workers look for modules."""
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = SearchPath()
    return config


class RayRuntime:
    """Ray, started unless it is running already; `close` ends what was started here."""

    def __init__(self, config: RayConfig, cpus: float) -> None:
        """Connect, or start on this machine with room for actors that reserve `cpus`, and with all its GPUs.

        CPUs are a reservation, not a limit: engine, environments and learner take turns on the cores there are.

        Raises:
            ConnectionError: Ray does not start in time, or does not answer at the address.
        """
        import ray

        self._folder: Path | None = None
        self._mine = not ray.is_initialized()
        if not self._mine:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray lowers its workers' priority by 15: next to anything else on the machine the engines would starve.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # It only says that access to the cluster is guarded by a token, as it should be.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with _keep_sigterm():
            self._begin(config, cpus)

    def _begin(self, config: RayConfig, cpus: float) -> None:
        import ray

        if config.address is not None:
            job = None if config.address.startswith("ray://") else job_config()  # a Ray client passes no folders on
            ray.init(address=config.address, log_to_driver=False, logging_level=logging.WARNING, job_config=job)  # type: ignore[arg-type]
            return
        # Ray puts Unix sockets into this folder, and their paths may not be longer than 107 bytes.
        self._folder = make_folder("ray", Path("/tmp"))
        with _start_fault():
            ray.init(
                address="local",  # without it RAY_ADDRESS in the environment would name a cluster that the configuration does not
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
    """Raise OSError if nothing listens at an address with a host, ValueError if the address is malformed.

    Without a port, `ray://` means that of Ray's client; others, such as `auto`, are not tried.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    port = place.port or (CLIENT_PORT if place.scheme == "ray" else None)
    if place.hostname is not None and port is not None:
        socket.create_connection((place.hostname, port), timeout=seconds).close()


def make_folder(what: str, place: Path) -> Path:
    """A new folder in `place` for `what` (lower-case letters); leftovers of killed processes there are removed."""
    remove_leftovers(place)
    return Path(tempfile.mkdtemp(prefix=f"flywheel-{what}-{os.getpid()}-", dir=place))


def remove_leftovers(place: Path) -> None:
    """Remove the folders in `place` whose process has ended."""
    for folder in place.glob("flywheel-*"):
        named = _FOLDER_NAME.fullmatch(folder.name)
        if named and not Path("/proc", named[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _start_fault() -> Iterator[None]:
    """Raise `ConnectionError` if Ray does not start in time, as on a busy machine.

    Ray raises a bare `Exception` for that, and a `RuntimeError` if one of its own processes has not named its port yet.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception and not (isinstance(error, RuntimeError) and str(error).startswith("Timed out waiting for file")):
            raise
        raise ConnectionError(f"Ray did not start on this machine: {error}") from error


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Keep this process's own handler of SIGTERM: `ray.init` replaces it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
