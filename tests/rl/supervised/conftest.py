"""A small policy whose tokenizer knows the words that these tests train on, and runs that are stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy
from rl.renderers.examples import EncodedExample
from tests.rl.learner.conftest import one_thread as one_thread
from tests.rl.toy import encode_texts

SIZES = PolicyConfig(layers=2, width=32, heads=2, key_value_heads=2, intermediate_size=48, vocabulary_size=320)
TEXTS = [f"<information> Amber {number} lives in Blue {number * 7 % 10}.</information>" for number in range(40)]
GENERAL = [f"The river number {number} rises in the hills and it is {number * 13 % 97} miles long." for number in range(60)]


class Stopped(Exception):
    """Stands for the kill of a run."""


def stop_at(last: int) -> Callable[[int, dict[str, float]], None]:
    """Takes the figures of each step, and stops the run at that one."""

    def stop(step: int, figures: dict[str, float]) -> None:
        if step == last:
            raise Stopped

    return stop


def quiet(step: int, figures: dict[str, float]) -> None:
    """Takes the figures of each step and does nothing with them."""


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_policy(SIZES, TEXTS + GENERAL, ["Amber", "Blue"], tmp_path_factory.mktemp("policy"), 1)


@pytest.fixture(scope="session")
def examples(policy: Path) -> list[EncodedExample]:
    return encode_texts(policy, TEXTS)
