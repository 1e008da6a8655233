"""Ray: one machine by default, a cluster by its address. What was started here is shut down here, and nothing else."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.job_config import JobConfig

from rl.env_pool.config import RayConfig
from rl.env_pool.process_folders import make_folder
from rl.memory import GIB


class SearchPath(list[str]):
    """Folders in which workers look for modules: of those that Ray adds, the ones in which this process looks too.

    Ray would add the current folder always, and in front: a `transformers.py` that lies there would be every worker's.
    """

    def extend(self, folders: Iterable[str]) -> None:
        """Add the folders that this process searches."""
        super().extend(folder for folder in folders if folder in sys.path)


def job_config() -> JobConfig:
    """What Ray is told of this process: where its workers look for modules."""
    config = JobConfig()
    config._py_driver_sys_path = SearchPath()
    return config


class RayRuntime:
    """Ray, started where it was not running yet; `close` ends what was started here."""

    def __init__(self, config: RayConfig, cpus: float) -> None:
        """Connect, or start on this machine with room for actors that reserve `cpus`, and with all its GPUs.

        CPUs are a reservation, not a limit: engine, environments and learner take turns on the cores there are.

        Raises:
            ConnectionError: Ray does not start in time, or does not answer at the address.
        """
        self._folder: Path | None = None
        self._mine = not ray.is_initialized()
        if not self._mine:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray lowers its workers' priority by 15: beside anything else on the machine the engines would starve.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # It only says that access to the cluster is guarded by a token, as it should be.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with _keep_sigterm():
            self._begin(config, cpus)

    def _begin(self, config: RayConfig, cpus: float) -> None:
        if config.address is not None:
            told = None if config.address.startswith("ray://") else job_config()  # a client hands on no folder
            ray.init(address=config.address, log_to_driver=False, logging_level=logging.WARNING, job_config=told)  # type: ignore[arg-type]
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
        if self._mine and ray.is_initialized():
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


@contextmanager
def _start_fault() -> Iterator[None]:
    """Raise `ConnectionError` for a Ray that does not start in its time, as on a busy machine.

    Ray has a bare `Exception` for it, and a `RuntimeError` for a process of its own that has not named its port yet.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception and not (isinstance(error, RuntimeError) and str(error).startswith("Timed out waiting for file")):
            raise
        raise ConnectionError(f"Ray did not start on this machine: {error}") from error


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Keep this process's own handler of SIGTERM, where it has one: `ray.init` replaces it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
