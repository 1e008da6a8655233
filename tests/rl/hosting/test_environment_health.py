from __future__ import annotations

import pytest

from rl.hosting.health import HealthGate, UnhealthyError, environment, tool

FAULT = "error: it broke"


def gate_after(outcomes: str, window: int = 4, share: float = 0.5) -> HealthGate:
    """A gate that saw an environment fail at each `x`."""
    gate = HealthGate(window, share)
    for outcome in outcomes:
        gate.record(environment("maze"), FAULT if outcome == "x" else None)
    return gate


@pytest.mark.parametrize("outcomes", ["", "xxx", "..xx", "xxxx..", "x.x.x.x."])
def test_a_window_that_is_not_full_or_half_well_goes_on(outcomes: str) -> None:
    gate_after(outcomes).check()


@pytest.mark.parametrize("outcomes", [".xxx", "....xxx", "xxxx"])
def test_too_many_faults_stop_it_by_name(outcomes: str) -> None:
    told = f"the environment 'maze' failed in {outcomes[-4:].count('x')} of its last 4 trajectories .*it broke"
    with pytest.raises(UnhealthyError, match=told):
        gate_after(outcomes).check()


def test_the_share_is_configured() -> None:
    gate_after("xxxx", share=1.0).check()
    with pytest.raises(UnhealthyError):
        gate_after("...x", share=0.0).check()


def test_everything_unwell_is_named_and_nothing_else() -> None:
    gate = gate_after("xxxx")
    for _ in range(4):
        gate.record(tool("search"), FAULT)
        gate.record(tool("code"), None)
    with pytest.raises(UnhealthyError) as error:
        gate.check()
    assert "'maze'" in str(error.value) and "the tool 'search' failed in 4 of its last 4 calls" in str(error.value)
    assert "code" not in str(error.value)
