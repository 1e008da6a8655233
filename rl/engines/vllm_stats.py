"""Forwards vLLM's step statistics to the pressure gauge."""

from __future__ import annotations

from functools import partial

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from rl.engines.pressure import PressureGauge


class PressureLogger(StatLoggerBase):
    def __init__(self, gauge: PressureGauge, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._gauge = gauge

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after each step."""
        if scheduler_stats is not None:
            preempted = iteration_stats.num_preempted_reqs if iteration_stats is not None else 0
            self._gauge.see(scheduler_stats.kv_cache_usage, scheduler_stats.num_waiting_reqs, preempted)

    def log_engine_initialized(self) -> None:
        """vLLM requires it."""


def pressure_logger(gauge: PressureGauge) -> partial[PressureLogger]:
    """The logger factory that vLLM takes."""
    return partial(PressureLogger, gauge)
