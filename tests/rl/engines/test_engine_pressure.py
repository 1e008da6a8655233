"""What vLLM says of its steps reaches our gauge, and concurrency follows it."""

from __future__ import annotations

import pytest

from rl.engines.base import EnginePressure, PressureGauge


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
