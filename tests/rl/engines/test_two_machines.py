"""An engine on a second machine that sees no folder of the first: weights are sent to it, and files are the record of the first alone.

The second machine is a raylet in a mount namespace of its own, with an empty file system where the learner writes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from rl.env_pool.config import RayConfig
from rl.env_pool.machines import machines
from rl.policies.policy import load_policy
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from tests.rl.conftest import DOCUMENTS
from tests.rl.engines.probing import generate_all, prompts, worst_difference
from tests.rl.engines.test_weight_transfer import ENGINE, TOLERANCE, Learner

pytestmark = [pytest.mark.engine, pytest.mark.long]

STORE = 80 * 1024**2
JOIN_SECONDS = 120


@pytest.fixture
def learner_folder(tmp_path: Path) -> Path:
    """Where the learner writes its versions; on the second machine there is nothing."""
    folder = tmp_path / "versions"
    folder.mkdir()
    return folder


@pytest.fixture
def address(learner_folder: Path) -> Iterator[str]:
    """A cluster whose first machine has no processors to give, so that all actors lie on the second."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be had here: a second machine without the first one's folders cannot be shown")
    cluster = Cluster()
    cluster.add_node(num_cpus=0, object_store_memory=STORE, include_dashboard=False)
    ray_start = (
        f"{sys.executable} -m ray.scripts.scripts start --address={cluster.address} --num-cpus=4 --object-store-memory={STORE} --block"
    )
    hidden = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {learner_folder} && exec {ray_start}"]
    second = subprocess.Popen(hidden, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def test_an_engine_that_shares_no_folder_with_the_learner_gets_its_weights_sent(
    address: str, learner_folder: Path, tiny_policy: Path, other_policy: Path
) -> None:
    limits = {"max_action_tokens": 60, "max_observation_tokens": 32, "max_context_tokens": 240}
    config = RolloutConfig.model_validate({"limits": limits, "engine": ENGINE, "ray": {"address": address}})
    with Rollouts.start(config, tiny_policy, DOCUMENTS) as engines:
        learner = Learner(engines)
        try:
            assert learner.publish(other_policy, learner_folder / "000001", 1), "it was not sent"
            assert (learner_folder / "000001" / "model.safetensors").is_file()
            assert ray.get(seen.remote(str(learner_folder))) == [], "the second machine sees the first one's files"
            generations = engines.wait(generate_all(engines.pool, prompts()))
        finally:
            learner.sender.close()
        figures = engines.figures()
    assert {version for each in generations for version in each.policy_versions} == {1}
    assert worst_difference({1: load_policy(other_policy)[0]}, prompts(), generations) < TOLERANCE
    assert (figures.transfers, figures.replacements) == (1, 0)
