"""A pool of real vLLM engines that are updated, paused, added, taken out and killed while they work."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl.engines.base import Generation, Sampling
from rl.engines.config import EngineConfig
from rl.engines.pool import EnginePool
from rl.placement import engine_bundles
from rl.policies.policy import load_policy
from rl.ray_runtime import RayConfig, RayRuntime
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from tests.rl.conftest import DOCUMENTS, TASKS
from tests.rl.engines.probing import engine_processes, generate_all, prompts, wait_until_busy, worst_difference
from tests.rl.policies.logprob_check import max_logprob_difference
from warehouse.errors import RequestError
from warehouse.records import Trajectory

TOLERANCE = 1e-4
ENGINE = {"kv_cache_gib": 0.1, "cpus": 0.25}
"""Small enough for several engines on the processors that Ray has here."""


@pytest.fixture(scope="module")
def pool_rollouts(tiny_policy: Path) -> Iterator[Rollouts]:
    """One engine to begin with; long actions, so that there is time to do something to it in their middle."""
    limits = {"max_action_tokens": 60, "max_observation_tokens": 32, "max_context_tokens": 240}
    config = RolloutConfig.model_validate({"limits": limits, "engine": ENGINE})
    with Rollouts.start(config, tiny_policy, DOCUMENTS) as started:
        yield started


@pytest.fixture(scope="module")
def added(pool_rollouts: Rollouts) -> str:
    """A second engine, for the tests that stand beside each other; the last of them takes it out."""
    return pool_rollouts.add_engine()


def resources(config: EngineConfig) -> list[dict[str, float]]:
    return [bundle.resources for bundle in engine_bundles(config)]


def requests(count: int, prefix: str) -> list[RolloutRequest]:
    return [RolloutRequest(f"{prefix}{i}", TASKS[i % len(TASKS)], "tiny", 3, seed=i, sample=i) for i in range(count)]


@pytest.mark.engine
def test_each_token_bears_the_version_that_sampled_it_across_an_update(
    pool_rollouts: Rollouts, tiny_policy: Path, other_policy: Path
) -> None:
    async def across_an_update(delay: float) -> list[Generation]:
        pool = pool_rollouts.pool
        await pool.load_weights(str(tiny_policy), 0)
        waiting = asyncio.ensure_future(generate_all(pool, prompts()))
        await asyncio.sleep(delay)
        await pool.load_weights(str(other_policy), 1)
        return await waiting

    generations: list[Generation] = []
    for delay in (0.1, 0.3, 0.6, 1.0):  # a machine with other work to do begins later
        generations = pool_rollouts.wait(across_an_update(delay))
        if {generation.policy_version for generation in generations} == {0}:
            break
    pool_rollouts.load_weights(tiny_policy, 0)
    assert {generation.policy_version for generation in generations} == {0}
    assert any(set(generation.policy_versions) == {0, 1} for generation in generations)
    assert all(list(generation.policy_versions) == sorted(generation.policy_versions) for generation in generations)
    models = {0: load_policy(tiny_policy)[0], 1: load_policy(other_policy)[0]}
    assert worst_difference(models, prompts(), generations) < TOLERANCE
    swapped = {0: models[1], 1: models[0]}
    assert worst_difference(swapped, prompts(), generations) > 0.1, "the check could not tell the two policies apart"


@pytest.mark.engine
def test_nothing_ends_while_the_engines_are_paused_and_all_goes_on_after(pool_rollouts: Rollouts, tiny_policy: Path) -> None:
    stream = pool_rollouts.submit(requests(16, "paused"))
    wait_until_busy(pool_rollouts)
    pool_rollouts.pause()
    try:
        before = pool_rollouts.figures()
        time.sleep(0.5)
        after = pool_rollouts.figures()
        assert after.requests == before.requests
        assert after.in_flight >= before.in_flight > 0, "those that come meanwhile wait with the others"
        pool_rollouts.load_weights(tiny_policy, 3)
        assert pool_rollouts.figures().requests == before.requests, "an update of paused engines does not set them going"
    finally:
        pool_rollouts.resume()
    trajectories = list(stream)
    pool_rollouts.load_weights(tiny_policy, 0)
    assert len(trajectories) == 16
    assert {trajectory.error for trajectory in trajectories} == {None}
    assert max_logprob_difference(load_policy(tiny_policy)[0], trajectories) < TOLERANCE


@pytest.mark.engine
def test_more_prompts_than_fit_into_a_pass_are_sampled_from_with_their_seeds(pool_rollouts: Rollouts, tiny_policy: Path) -> None:
    contexts = [tuple(20 + (first * 7 + place) % 300 for place in range(230)) for first in range(40)]
    assert sum(map(len, contexts)) > pool_rollouts.config.engine.max_batched_tokens
    before = [engine.name for engine in pool_rollouts.figures().engines]
    generations = pool_rollouts.wait(generate_all(pool_rollouts.pool, contexts, 4))
    assert [engine.name for engine in pool_rollouts.figures().engines] == before, "an engine died of it"
    assert worst_difference({0: load_policy(tiny_policy)[0]}, contexts, generations) < TOLERANCE


@pytest.mark.engine
def test_a_stream_that_is_cancelled_frees_the_engine(pool_rollouts: Rollouts, tiny_policy: Path) -> None:
    stream = pool_rollouts.submit(requests(64, "cancelled"))
    wait_until_busy(pool_rollouts, 16)
    stream.cancel()
    deadline = time.monotonic() + 120
    while any(engine.in_flight or engine.trajectories for engine in pool_rollouts.figures().engines):
        assert time.monotonic() < deadline, "what nobody waits for is still sampled"
        time.sleep(0.01)
    check_valid(pool_rollouts.rollout(requests(2, "after")), 2, tiny_policy)


@pytest.mark.long
@pytest.mark.engine
def test_an_engine_leaves_while_a_stream_goes_on(pool_rollouts: Rollouts, added: str, tiny_policy: Path) -> None:
    retaken = pool_rollouts.figures().retaken
    stream = pool_rollouts.submit(requests(48, "joined"))
    wait_until_busy(pool_rollouts, 8)
    busy = {engine.name: engine.in_flight for engine in pool_rollouts.figures().engines}
    assert busy[added] > 0
    pool_rollouts.remove_engine(added)
    assert pool_rollouts.figures().retaken == retaken, "what is drained is not taken up again"
    trajectories = list(stream)
    assert {engine.name for engine in pool_rollouts.figures().engines} == set(busy) - {added}
    check_valid(trajectories, 48, tiny_policy)
    assert pool_rollouts.figures().requests >= 48


@pytest.mark.engine
def test_weights_that_are_not_whole_are_refused_before_an_engine_sees_them(
    pool_rollouts: Rollouts, tiny_policy: Path, tmp_path: Path
) -> None:
    for file in tiny_policy.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    with pytest.raises(RequestError, match="weight file"):
        pool_rollouts.load_weights(tmp_path, 7)
    with pytest.raises(RequestError, match="holds no policy"):
        pool_rollouts.load_weights(tmp_path / "nowhere", 7)
    check_valid(pool_rollouts.rollout(requests(2, "unhurt")), 2, tiny_policy)


@pytest.mark.engine
def test_y_requests_of_an_engine_that_is_killed_are_taken_up_by_its_replacement(pool_rollouts: Rollouts, tiny_policy: Path) -> None:
    before = pool_rollouts.figures()
    pool_rollouts.load_weights(tiny_policy, 9)
    stream = pool_rollouts.submit(requests(8, "killed"))
    wait_until_busy(pool_rollouts, 4)
    for process in engine_processes():
        process.send_signal(signal.SIGKILL)
    trajectories = list(stream)
    check_valid(trajectories, 8, tiny_policy)
    assert {turn.policy_version for trajectory in trajectories for turn in trajectory.turns} == {9}
    after = pool_rollouts.figures()
    assert after.retaken - before.retaken >= 4
    assert after.replacements - before.replacements == 1


@pytest.mark.engine
def test_z_without_replacements_the_trajectories_are_invalid_and_say_why(tiny_policy: Path, pool_rollouts: Rollouts) -> None:
    """Last of the module: it leaves the pool without engines."""
    pool_rollouts.pool._config = EngineConfig.model_validate({**ENGINE, "max_replacements": 0})
    for process in engine_processes():
        process.send_signal(signal.SIGKILL)
    dead = pool_rollouts.rollout(requests(3, "dead"))
    assert {trajectory.outcome.value for trajectory in dead if trajectory.outcome} == {"invalid"}
    assert all("replacements are used up" in (trajectory.error or "") for trajectory in dead)


@pytest.mark.long
@pytest.mark.engine
def test_drained_requests_end_under_the_weights_they_began_with(tiny_policy: Path, other_policy: Path) -> None:
    config = EngineConfig.model_validate({**ENGINE, "updates": "drain"})

    async def drained() -> tuple[list[Generation], list[Generation]]:
        pool = await EnginePool.start(config, str(tiny_policy))
        await generate_all(pool, prompts(1), 1)
        first = asyncio.ensure_future(generate_all(pool, prompts()))
        await asyncio.sleep(0.1)
        assert not first.done()
        await pool.load_weights(str(other_policy), 1)
        second = await generate_all(pool, prompts(2), 8)
        generations = await first, second
        await pool.shutdown()
        return generations

    first, second = run_on_ray(drained())
    assert {len(set(generation.policy_versions)) for generation in first} == {1}, "what the engine had not begun with may be later"
    assert 0 in {generation.policy_version for generation in first}
    assert {version for generation in second for version in generation.policy_versions} == {1}
    models = {0: load_policy(tiny_policy)[0], 1: load_policy(other_policy)[0]}
    assert worst_difference(models, prompts(), first) < TOLERANCE
    assert worst_difference(models, prompts(2), second) < TOLERANCE


@pytest.mark.long
@pytest.mark.engine
def test_an_older_policy_samples_what_is_asked_of_it_and_catches_up_when_it_is_too_old(tiny_policy: Path, other_policy: Path) -> None:
    config = EngineConfig.model_validate({**ENGINE, "older": 1, "older_every": 2})
    contexts = prompts(2)

    async def crossed() -> list[list[Generation]]:
        pool = await EnginePool.start(config, str(tiny_policy))
        found = []
        for version, policy in ((0, tiny_policy), (1, other_policy), (2, tiny_policy), (0, other_policy)):
            await pool.load_weights(str(policy), version)
            for older in (False, True):
                sampling = Sampling(max_tokens=6, seed=1, older=older)
                found.append(await asyncio.gather(*(pool.generate(f"t{n}", context, sampling) for n, context in enumerate(contexts))))
        assert len(pool.engines) == 1, "the older one takes no other requests"
        await pool.shutdown()
        return found

    found = run_on_ray(crossed())
    assert [{each.policy_version for each in pair} for pair in found] == [{0}, {0}, {1}, {0}, {2}, {2}, {0}, {0}]
    models = [load_policy(path)[0] for path in (tiny_policy, other_policy)]
    for pair, model in zip(found, (0, 0, 1, 0, 0, 0, 1, 1), strict=True):
        assert worst_difference({each.policy_version: models[model] for each in pair}, contexts, pair) < TOLERANCE


def run_on_ray(work: Any) -> Any:
    """The result of a coroutine, with a Ray of its own where none is up."""
    runtime = RayRuntime(RayConfig(), 2)
    try:
        return asyncio.run(work)
    finally:
        runtime.close()


def check_valid(trajectories: Sequence[Trajectory], count: int, policy: Path) -> None:
    assert len({trajectory.id for trajectory in trajectories}) == count
    assert {trajectory.error for trajectory in trajectories} == {None}
    assert max_logprob_difference(load_policy(policy)[0], trajectories) < TOLERANCE
