from __future__ import annotations

import pytest

from rl.env_pool.circuit_breaker import CircuitBreaker, CircuitOpen, environment

FAULT = "error: it broke"


def breaker_after(outcomes: str, window: int = 4, share: float = 0.5) -> CircuitBreaker:
    """A breaker that saw an environment fail at each `x`."""
    breaker = CircuitBreaker(window, share)
    for outcome in outcomes:
        breaker.record(environment("maze"), FAULT if outcome == "x" else None)
    return breaker


@pytest.mark.parametrize("outcomes", ["", "xxx", "..xx", "xxxx..", "x.x.x.x."])
def test_a_window_that_is_not_full_or_half_well_goes_on(outcomes: str) -> None:
    breaker_after(outcomes).check()


@pytest.mark.parametrize("outcomes", [".xxx", "....xxx", "xxxx"])
def test_too_many_faults_stop_it_by_name(outcomes: str) -> None:
    told = f"the environment 'maze' failed in {outcomes[-4:].count('x')} of its last 4 trajectories .*it broke"
    with pytest.raises(CircuitOpen, match=told):
        breaker_after(outcomes).check()
