"""Rollouts with a real vLLM engine and real environment workers on Ray."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from rl.env_pool.circuit_breaker import CircuitBreaker, CircuitOpen
from rl.policies.policy import load_policy, save_policy
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from tests.rl.conftest import FAULTY, HASTY, TASKS
from tests.rl.policies.logprob_check import max_logprob_difference
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory

TOLERANCE = 1e-4


def requests(count: int = 20, temperature: float = 1.0, prefix: str = "t", horizon: int = 3) -> list[RolloutRequest]:
    return [
        RolloutRequest(f"{prefix}{i}", TASKS[i % len(TASKS)], "tiny", horizon, seed=i, temperature=temperature, sample=i)
        for i in range(count)
    ]


def actions(trajectories: list[Trajectory]) -> list[tuple[int, ...]]:
    return [turn.action_ids for trajectory in trajectories for turn in trajectory.turns]


def faulty(question: str, environment: str = FAULTY) -> RolloutRequest:
    return RolloutRequest(f"faulty-{question}", Task(question, environment, question, ()), "tiny", 2, seed=0)


@pytest.mark.engine
def test_trajectories_come_back_in_order_with_the_models_own_logprobs(rollouts: Rollouts, tiny_policy: Path) -> None:
    done: list[tuple[int, int]] = []
    trajectories = rollouts.rollout(requests(), on_progress=lambda count, total: done.append((count, total)))
    assert [trajectory.id for trajectory in trajectories] == [f"t{i}" for i in range(20)]
    assert done[-1] == (20, 20)
    assert all(trajectory.outcome is None and trajectory.error is None for trajectory in trajectories)
    assert all(len(turn.action_ids) == len(turn.action_logprobs) for t in trajectories for turn in t.turns)
    model, _ = load_policy(tiny_policy)
    assert max_logprob_difference(model, trajectories) < TOLERANCE


@pytest.mark.engine
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logprobs_are_those_of_the_distribution_sampled_from(rollouts: Rollouts, tiny_policy: Path, temperature: float) -> None:
    model, _ = load_policy(tiny_policy)
    assert max_logprob_difference(model, rollouts.rollout(requests(6, temperature)), temperature) < TOLERANCE


@pytest.mark.engine
def test_fewer_are_admitted_while_they_run_and_none_of_them_is_another_for_it(rollouts: Rollouts) -> None:
    free = rollouts.rollout(requests(8, prefix="free"))
    rollouts.admit(0)
    stream = rollouts.submit(requests(8, prefix="held"))
    time.sleep(1.0)
    assert not stream.ready and rollouts.figures().in_flight == 0
    rollouts.admit(1)
    held = [next(stream)]
    assert held[0].id == "held0" and rollouts.figures().in_flight <= 1
    rollouts.admit(None)
    held = sorted([*held, *stream], key=lambda trajectory: trajectory.id)
    assert actions(held) == actions(free)


@pytest.mark.engine
def test_seeds_repeat_a_rollout(rollouts: Rollouts) -> None:
    first, second = (actions(rollouts.rollout(requests(8, prefix=prefix))) for prefix in ("a", "b"))
    assert first == second


@pytest.mark.engine
def test_engine_and_learner_agree_after_every_update(rollouts: Rollouts, tiny_policy: Path, tmp_path: Path) -> None:
    model, tokenizer = load_policy(tiny_policy)
    try:
        for version in (1, 2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.05)
            save_policy(model, tokenizer, tmp_path / str(version))
            rollouts.load_weights(tmp_path / str(version), version)
            trajectories = rollouts.rollout(requests())
            assert {turn.policy_version for trajectory in trajectories for turn in trajectory.turns} == {version}
            assert max_logprob_difference(model, trajectories) < TOLERANCE
    finally:
        rollouts.load_weights(tiny_policy, 0)


@pytest.mark.engine
def test_faults_of_the_environment_are_invalid_and_hold_up_nobody(rollouts: Rollouts) -> None:
    trajectories = rollouts.rollout([faulty("raise"), faulty("hang", HASTY), faulty("none"), *requests(3)])
    broken, hung, fine, *others = trajectories
    assert broken.stop_reason is StopReason.FAULT
    assert broken.outcome is Outcome.INVALID
    assert broken.error == "error: ValueError: the world broke"
    assert hung.error == "timeout: the environment's reset took longer than 1 seconds"
    assert fine.error is None
    given_up = hung.started + timedelta(seconds=hung.seconds)
    assert [other.error for other in others] == [None] * 3
    assert max(other.started for other in others) < given_up


@pytest.mark.engine
def test_a_dead_worker_is_replaced(rollouts: Rollouts) -> None:
    dead = rollouts.rollout([faulty("die")])[0]
    assert (dead.outcome, dead.error) == (Outcome.INVALID, "died: the environment's worker died")
    assert [loss.item for loss in rollouts.drain_retries()] == [{"trajectory": dead.id}], "it was begun anew once, and no more"
    assert all(trajectory.error is None for trajectory in rollouts.rollout(requests(3)))


@pytest.mark.engine
def test_what_was_on_a_worker_that_died_is_begun_anew(rollouts: Rollouts, tmp_path: Path) -> None:
    rollouts.drain_retries()
    deadly = [replace(faulty(f"die unless {tmp_path / 'died'}"), trajectory_id=f"deadly{i}") for i in range(24)]
    trajectories = rollouts.rollout(deadly)
    losses = rollouts.drain_retries()
    assert [trajectory.error for trajectory in trajectories] == [None] * 24
    assert {loss.item["trajectory"] for loss in losses} <= {request.trajectory_id for request in deadly}
    assert {(loss.stage, loss.kind, loss.reason) for loss in losses} == {("rl", "retried", "died: the environment's worker died")}
    assert rollouts.drain_retries() == []


@pytest.mark.engine
def test_rollouts_stop_by_name_where_an_environment_is_down(rollouts: Rollouts) -> None:
    pool = rollouts.environments
    broken = [replace(faulty("raise"), trajectory_id=f"down{i}") for i in range(40)]
    try:
        with pytest.raises(CircuitOpen, match=r"the environment 'tests\.rl\.faulty:create' failed in \d+ of its last 32 .*world broke"):
            rollouts.rollout([*requests(2, prefix="beside"), *broken])
        pool.breaker = CircuitBreaker(window=32, max_share=0.5)
        assert all(trajectory.error is None for trajectory in rollouts.rollout(requests(3, prefix="after")))
    finally:
        pool.breaker = CircuitBreaker(window=32, max_share=0.5)


@pytest.mark.engine
def test_an_environment_that_cannot_be_made_is_refused_before_anything_runs(rollouts: Rollouts) -> None:
    with pytest.raises(RequestError, match="chess"):
        rollouts.rollout([RolloutRequest("x", Task("x", "chess", "?", ()), "tiny", 2, seed=0)])


def test_a_context_that_the_policy_cannot_take_is_refused(tiny_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="max_context_tokens = 1024 is more than the 256"):
        Rollouts.start(RolloutConfig(), tiny_policy)
    with pytest.raises(RequestError, match="holds no policy"):
        Rollouts.start(RolloutConfig(), tmp_path)
