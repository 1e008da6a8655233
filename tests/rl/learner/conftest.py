"""What the tests of this folder share: models run on one thread, and a toy policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl.hardware import torch_threads
from tests.rl.toy import make_policy, stale_pairs
from warehouse.records import Trajectory


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of this size gain nothing from more threads, which wait for each other on a busy machine."""
    with torch_threads(1):
        yield


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny policy, which no test writes into."""
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def stale(policy: Path) -> list[Trajectory]:
    """Trajectories of unequal length from a slightly different policy, so that some ratios are clipped on either side."""
    return stale_pairs(policy)
