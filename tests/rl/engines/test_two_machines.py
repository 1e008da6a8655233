"""An engine on a second machine that sees no folder of the first: what it starts with and what it loads is sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rl.policies.policy import load_policy
from rl.rollouts.rollout import Rollouts
from tests.rl.conftest import create_tiny_policy
from tests.rl.engines.learner_end import RANK, Learner, adapted, start
from tests.rl.engines.probing import generate_all, prompts, worst_difference
from tests.two_machines import seen, two_machines

pytestmark = [pytest.mark.engine, pytest.mark.long]

TOLERANCE = 1e-4


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """Where the first machine's policies lie; on the second there is nothing."""
    folder = tmp_path / "policies"
    for seed in (0, 1):
        create_tiny_policy(folder / str(seed), seed)
    return folder


@pytest.fixture
def address(policies: Path) -> Iterator[str]:
    with two_machines(policies) as found:
        yield found


def check(engines: Rollouts, policies: Path, version: int, model: Any) -> None:
    """That engines sample with these weights, as this version, on a machine where there is no policy."""
    assert ray.get(seen.remote(str(policies))) == [], "the second machine sees the first one's files"
    generations = engines.wait(generate_all(engines.pool, prompts()))
    assert {each for generation in generations for each in generation.policy_versions} == {version}
    assert worst_difference({version: model}, prompts(), generations) < TOLERANCE


def test_an_engine_without_shared_files_receives_sent_weights(address: str, policies: Path) -> None:
    other = load_policy(policies / "1")[0]
    with start(policies / "0", address) as engines:
        check(engines, policies, 0, load_policy(policies / "0")[0])
        learner = Learner(engines)
        try:
            assert learner.publish(policies / "1", policies / "000001", 1), "it was not sent"
            assert (policies / "000001" / "model.safetensors").is_file()
            check(engines, policies, 1, other)
        finally:
            learner.sender.close()
        figures = engines.figures()
    assert (figures.transfers, figures.replacements) == (1, 0)


def test_policies_and_adapters_reach_engines_without_shared_files(address: str, policies: Path) -> None:
    first, other, adapter = load_policy(policies / "0")[0], load_policy(policies / "1")[0], adapted(policies / "0", policies / "adapters")
    with start(policies / "0", address, transfer="files", adapter_rank=RANK) as engines:
        engines.load_weights(policies / "1", 1)
        check(engines, policies, 1, other)
        engines.load_weights(policies / "adapters", 2)
        check(engines, policies, 2, adapter)
        name = engines.add_engine()
        engines.remove_engine("engine-0")
        assert engines.pool.engines == (name,)
        check(engines, policies, 2, adapter)
        engines.load_weights(policies / "0", 3)
        check(engines, policies, 3, first)
        assert engines.figures().replacements == 0
