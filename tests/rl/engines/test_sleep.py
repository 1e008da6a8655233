"""Real vLLM engines that sleep while a learner has its turn, on CPUs: what they give back, what they wake with, and who dies meanwhile."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from rl.engines.base import Generation
from rl.learner.base import EngineWeights
from rl.learner.config import ReinforceConfig
from rl.policies.policy import load_policy
from rl.rollouts.collect import Collected
from rl.rollouts.rollout import Rollouts
from tests.rl.engines import learner_end
from tests.rl.engines.learner_end import EngineSampler, Learner, assert_same, said, said_by_files, versions
from tests.rl.engines.probing import engine_processes, generate_all, prompts, worst_difference
from tests.rl.toy import Scripted, learn

pytestmark = [pytest.mark.engine, pytest.mark.long]

TOLERANCE = 1e-4
MIB = 2**20
CACHE_MIB = 102
start = partial(learner_end.start, sleep_level=2)
REINFORCE = ReinforceConfig(steps=4, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=4, learning_rate=3e-3, save_every=10)


@pytest.fixture(scope="module")
def engines(tiny_policy: Path) -> Iterator[Rollouts]:
    """One engine that loses its weights as it sleeps."""
    with start(tiny_policy) as started:
        yield started


@pytest.fixture
def learner(engines: Rollouts) -> Iterator[Learner]:
    started = Learner(engines)
    yield started
    started.sender.close()


def memory(others: frozenset[int] = frozenset()) -> float:
    """MiB of memory that the one engine's process holds, apart from the processes `others`."""
    (process,) = (each for each in engine_processes() if each.pid not in others)
    return float(process.memory_info().rss / MIB)


def begin(engines: Rollouts, count: int = 8, tokens: int = 200) -> Future[list[Generation]]:
    """Requests that are under way, or wait."""
    return asyncio.run_coroutine_threadsafe(generate_all(engines.pool, prompts(count), tokens), engines.event_loop)


def kill_engines() -> None:
    for process in engine_processes():
        process.send_signal(signal.SIGKILL)


def check_says(engines: Rollouts, policy: Path, version: int) -> None:
    """What the engines sample bears that version, and is what that policy says."""
    generations = said(engines, 3)
    assert versions(generations) == {version}
    assert worst_difference({version: load_policy(policy)[0]}, prompts(3), generations) < TOLERANCE


def test_a_sleeping_engine_frees_its_cache_and_wakes_with_new_weights(engines: Rollouts, tiny_policy: Path, other_policy: Path) -> None:
    first = said_by_files(engines, tiny_policy, 1)
    for policy, version in ((other_policy, 2), (tiny_policy, 3), (other_policy, 4)):
        awake = memory()
        engines.pause()
        asleep = memory()
        engines.load_weights(policy, version)
        loaded = memory()
        engines.resume()
        check_says(engines, policy, version)
    assert awake - asleep > 0.9 * CACHE_MIB, f"{awake:.0f} MiB awake, {asleep:.0f} asleep"
    assert awake - loaded > 0.9 * CACHE_MIB, "the cache comes back with the engine's turn, not with the weights"
    assert memory() - asleep > 0.9 * CACHE_MIB
    assert_same(said_by_files(engines, tiny_policy, 5), first)


@pytest.mark.parametrize("way", ["files", "sent", "in the transfer"])
def test_an_engine_that_dies_while_asleep_is_replaced_at_wake_up(
    engines: Rollouts, tiny_policy: Path, other_policy: Path, tmp_path: Path, way: str
) -> None:
    engines.load_weights(tiny_policy, 11)
    under_way = begin(engines, 4)
    before = engines.figures().replacements
    engines.pool._config = engines.pool._config.model_copy(update={"max_replacements": before + 1})
    engines.pause()
    if way == "in the transfer":
        struck = Learner(engines, lambda step: kill_engines() if step == "update_weights" else None)
        assert not struck.publish(other_policy, tmp_path / "12", 12)
    else:
        kill_engines()
        if way == "sent":
            assert not Learner(engines).send(other_policy, tmp_path / "12", 12)
        engines.load_weights(other_policy, 12)
    time.sleep(1)
    assert not engine_processes(), "no engine starts while the learner has the memory"
    engines.resume()
    generations = under_way.result()
    assert versions(generations) == {12}, "what the dead engine had sampled is discarded"
    assert worst_difference({12: load_policy(other_policy)[0]}, prompts(4), generations) < TOLERANCE
    check_says(engines, other_policy, 12)
    assert engines.figures().replacements == before + 1


@pytest.mark.parametrize("transfer", ["files", "gloo"])
def test_alternating_training_continues_after_a_sleeping_engine_is_killed(
    engines: Rollouts, tiny_policy: Path, tmp_path: Path, transfer: str
) -> None:
    before = engines.figures().replacements
    engines.pool._config = engines.pool._config.model_copy(update={"max_replacements": before + 1})
    engines.load_weights(tiny_policy, 0)
    sampler, differences = EngineSampler(engines, tmp_path), list[float]()

    def collect(step: int) -> Collected:
        collected = sampler.collect(step)
        engines.pause()
        if step == 2:
            kill_engines()
        return collected

    def publish(path: Path, version: int) -> None:
        engines.load_weights(path, version)
        go_on(version)

    def go_on(version: int) -> None:
        sampler.versions.append(version)
        engines.resume()

    def take(step: int, figures: dict[str, float]) -> None:
        differences.append(max(figures["logprob_difference"], figures.get("weight_difference", 0.0)))

    hooks = Scripted(
        collect,
        publish,
        take,
        weight_sync=engines.weight_sync if transfer == "gloo" else None,
        sent=go_on,
        engines=EngineWeights(in_turns=True),
        probe=lambda: engines.probe("Where is Amber Stone?", 1.0),
    )
    result = learn(tiny_policy, tmp_path, REINFORCE, hooks, 1)
    assert sampler.versions == [0, 1, 2, 3, 4]
    assert len(differences) == 4 and max(differences) < TOLERANCE, "each step was sampled with the weights that the learner had"
    assert engines.figures().replacements == before + 1
    check_says(engines, result.path, 4)
