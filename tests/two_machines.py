"""A cluster of two machines of which the second does not see a folder of the first: a raylet in a mount namespace of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from rl.env_pool.machines import machines
from rl.ray_runtime import RayConfig

STORE = 80 * 1024**2
JOIN_SECONDS = 120


@contextmanager
def two_machines(hidden: Path) -> Iterator[str]:
    """The address of a cluster whose actors all lie on the second machine, where `hidden` is empty."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be had here: a second machine without the first one's folders cannot be shown")
    cluster = Cluster()
    cluster.add_node(num_cpus=0, object_store_memory=STORE, include_dashboard=False)
    ray_start = (
        f"{sys.executable} -m ray.scripts.scripts start --address={cluster.address} --num-cpus=4 --object-store-memory={STORE} --block"
    )
    command = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {hidden} && exec {ray_start}"]
    second = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_two(str(cluster.address))
        yield str(cluster.address)
    finally:
        ray.shutdown()
        os.killpg(second.pid, signal.SIGTERM)
        second.wait(30)
        cluster.shutdown()


def wait_for_two(address: str) -> None:
    deadline = time.monotonic() + JOIN_SECONDS
    while len(machines(RayConfig(address=address))) < 2:
        assert time.monotonic() < deadline, "the second machine did not join"
        time.sleep(1)


@ray.remote(num_cpus=0.1)
def seen(folder: str) -> list[str]:
    """What lies in a folder, where this runs."""
    return os.listdir(folder)  # noqa: PTH208
