"""Observations in the loss: what the option does that exists to be measured, and that without it they are nowhere."""

from __future__ import annotations

import pytest

from rl.learner.batches import Row, with_observations
from rl.learner.config import ReinforceConfig

pytestmark = pytest.mark.engine

CONFIG = ReinforceConfig(steps=1, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=8)


def test_an_observation_shares_the_advantage_of_the_action_before_and_takes_the_policys_own_log_probability() -> None:
    row = Row((1,), (5, 50, 51, 6), (1, 0, 0, 1), (-1.0, 0.0, 0.0, -2.0), (0.5, 0.0, 0.0, -0.5), (1, 0, 0, 1), (0.0, 1.0))
    unmasked = with_observations(row, [-9.0, -3.0, -4.0, -9.0])
    assert unmasked.action_mask == (1, 1, 1, 1)
    assert unmasked.logprobs == (-1.0, -3.0, -4.0, -2.0)
    assert unmasked.advantages == (0.5, 0.5, 0.5, -0.5)
    assert unmasked.action_tokens == 4
