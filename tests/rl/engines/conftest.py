"""A second policy that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rl.conftest import create_tiny_policy


@pytest.fixture(scope="module")
def other_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture as `tiny_policy` with other weights."""
    return create_tiny_policy(tmp_path_factory.mktemp("policy") / "other", seed=1)
