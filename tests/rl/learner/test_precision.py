"""Which precision a stage computes in, and what follows for reinforcement learning: weights of importance, a bound for the weight check."""

from __future__ import annotations

import pytest
import torch

from rl.learner.config import (
    BOUNDS,
    SMALL_POLICY,
    LearnerConfig,
    OptimizerConfig,
    ReinforceConfig,
    computes_in_bfloat16,
    settled,
)

LARGE = 10 * SMALL_POLICY
ON_GPU = OptimizerConfig(learner=LearnerConfig(gpus=1))


class Machine:
    """Says what the machine of a test has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def has(self, gpu: bool = False, gpu_bfloat16: bool = False, avx512: bool = False, amx: bool = False) -> None:
        self._patch.setattr(torch.cuda, "is_available", lambda: gpu)
        self._patch.setattr(torch.cuda, "is_bf16_supported", lambda: gpu_bfloat16)
        self._patch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
        self._patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("units", [{"avx512": True}, {"amx": True}, {"avx512": True, "amx": True}])
def test_on_a_cpu_that_has_bfloat16_only_policies_that_are_not_small_compute_in_it(machine: Machine, units: dict[str, bool]) -> None:
    machine.has(**units)
    found = [computes_in_bfloat16(OptimizerConfig(), parameters) for parameters in (None, 1, SMALL_POLICY - 1, SMALL_POLICY, LARGE)]
    assert found == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("precision", "engine", "weights"),
    [
        ("float32", "float32", "none"),
        ("float32", "bfloat16", "truncated"),
        ("bfloat16", "float32", "truncated"),
    ],
)
def test_weights_of_importance_are_there_where_engine_and_learner_differ(precision: str, engine: str, weights: str) -> None:
    config = ReinforceConfig.model_validate({"precision": precision})
    assert config.correction.weights == "auto"
    assert not config.correction.needed
    found = settled(config, engine, LARGE).correction
    assert (found.weights, found.needed) == (weights, weights == "truncated")


@pytest.mark.parametrize(
    ("precision", "engine", "bound"),
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
        ("float32", "auto", "bfloat16"),
    ],
)
def test_the_bound_of_the_weight_check_is_tight_only_where_both_compute_in_float32(precision: str, engine: str, bound: str) -> None:
    config = ReinforceConfig.model_validate({"precision": precision})
    assert settled(config, engine, 1).health.weight_difference == BOUNDS[bound]
