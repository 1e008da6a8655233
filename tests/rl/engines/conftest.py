"""A second policy that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.config import PolicyConfig
from rl.policies.policy import create_policy
from tests.rl.conftest import DOCUMENTS, TASKS, WORDS


@pytest.fixture(scope="module")
def other_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture as `tiny_policy` with other weights."""
    config = PolicyConfig(
        layers=2, width=64, heads=2, key_value_heads=2, intermediate_size=128, vocabulary_size=400, max_position_embeddings=256
    )
    texts = [document.text for document in DOCUMENTS[:3]] + [task.question for task in TASKS]
    return create_policy(config, texts, WORDS, tmp_path_factory.mktemp("policy") / "other", seed=1)
