"""What vLLM says of its steps reaches our gauge, and concurrency follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.engines.base import EnginePressure, PressureGauge
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from tests.rl.conftest import DOCUMENTS, TASKS


@pytest.mark.engine
def test_vllms_own_statistics_are_taken_in_step_by_step() -> None:
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    from rl.engines.vllm_extensions import pressure_logger

    gauge, iteration = PressureGauge(), IterationStats()
    iteration.num_preempted_reqs = 2
    logger = pressure_logger(gauge)(None, 0)
    logger.record(SchedulerStats(num_running_reqs=8, num_waiting_reqs=5, kv_cache_usage=0.25), iteration)
    logger.record(SchedulerStats(num_running_reqs=8, num_waiting_reqs=3, kv_cache_usage=0.75), None)
    logger.record(None, None)
    assert gauge.take() == EnginePressure(2, 0.75, 3, 2)


@pytest.mark.long
@pytest.mark.engine
def test_concurrency_begins_at_the_floor_and_follows_a_real_engine(tiny_policy: Path) -> None:
    pressure = {"floor": 2, "increase": 2, "every_seconds": 0.2}
    config = RolloutConfig.model_validate(
        {
            "concurrency": 64,
            "limits": {"max_action_tokens": 8, "max_observation_tokens": 48, "max_context_tokens": 200},
            "engine": {"kv_cache_gib": 0.1, "pressure": pressure},
        }
    )
    requests = [RolloutRequest(f"t{i}", TASKS[i % len(TASKS)], "tiny", 3, seed=i, sample=i) for i in range(200)]
    with Rollouts.start(config, tiny_policy, DOCUMENTS) as rollouts:
        assert len(rollouts.rollout(requests)) == 200
        figures = rollouts.take_concurrency_figures()
    assert 2 < figures["concurrency/window"] <= 64, "it grew from the floor, for nothing pressed the engine"
    assert 0 < figures["engine_kv_usage"] < 0.9
