"""Observations in the loss: what the option does that exists to be measured, and that without it they are nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rl.learner.batches import Row, with_observations
from rl.learner.config import ReinforceConfig
from rl.learner.local import LocalLearner
from rl.policies.policy import load_policy
from tests.rl.toy import OBSERVATION, batches_of, gradients, make_policy, sample_pairs
from warehouse.records import Trajectory

pytestmark = pytest.mark.engine

CONFIG = ReinforceConfig(steps=1, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=8)


def test_an_observation_shares_the_advantage_of_the_action_before_and_takes_the_policys_own_log_probability() -> None:
    row = Row((1,), (5, 50, 51, 6), (1, 0, 0, 1), (-1.0, 0.0, 0.0, -2.0), (0.5, 0.0, 0.0, -0.5), (1, 0, 0, 1), (0.0, 1.0))
    unmasked = with_observations(row, [-9.0, -3.0, -4.0, -9.0])
    assert unmasked.action_mask == (1, 1, 1, 1)
    assert unmasked.logprobs == (-1.0, -3.0, -4.0, -2.0)
    assert unmasked.advantages == (0.5, 0.5, 0.5, -0.5)
    assert unmasked.action_tokens == 4


def test_only_the_option_lets_observations_move_weights(tmp_path: Path) -> None:
    policy = make_policy(tmp_path / "policy")
    sampled = sample_pairs(policy)
    gradient, observed = pull(policy, tmp_path, CONFIG, sampled)
    assert observed.sum() == len(OBSERVATION) * len(sampled)
    assert not gradient[observed].any() and gradient[~observed].any()
    unmasked, none = pull(policy, tmp_path, CONFIG.model_copy(update={"mask_observations": False}), sampled)
    assert not none.any() and (unmasked[observed].abs() > 0).all()


def pull(policy: Path, output: Path, config: ReinforceConfig, trajectories: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss's gradient on the log-probability of each token of a step's one pass, and which tokens are masked; both (rows, tokens)."""
    learner = LocalLearner(*load_policy(policy), config, output, 1)
    (inputs,) = batches_of(learner, trajectories, config)
    own, kept = learner.loss._get_per_token_logps_and_entropies, list[torch.Tensor]()

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        result[0].retain_grad()
        kept.append(result[0])
        return result

    learner.loss._get_per_token_logps_and_entropies = watched  # type: ignore[method-assign]
    gradients(learner, [inputs])
    gradient = kept[0].grad
    assert gradient is not None
    return gradient, (inputs["tool_mask"] == 0) & (inputs["completion_mask"] == 1)


def test_a_critic_takes_no_observations() -> None:
    with pytest.raises(ValidationError, match=r"rl\.mask_observations = false goes with no critic"):
        ReinforceConfig(mask_observations=False, estimator="gae")
