"""Advantages by hand, and what may never enter them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.estimators import ESTIMATORS, Estimator, dr_grpo, grpo, has_signal, rloo

ALL = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
VALID = torch.ones(1, 4, dtype=torch.bool)


def test_grpo_divides_by_the_deviation() -> None:
    deviation = REWARDS.std().item()
    assert grpo(REWARDS, VALID)[0, 0].item() == pytest.approx(0.5 / (deviation + 1e-4))


def test_dr_grpo_takes_the_mean_alone() -> None:
    assert dr_grpo(REWARDS, VALID).tolist() == [[0.5, -0.5, -0.5, 0.5]]


def test_rloo_takes_the_mean_of_the_others() -> None:
    assert rloo(REWARDS, VALID)[0].tolist() == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


@ALL
def test_invalid_trajectories_are_outside_of_every_mean_and_deviation(estimator: Estimator) -> None:
    masked = estimator(torch.tensor([[1.0, 99.0, 0.0, 1.0]]), torch.tensor([[True, False, True, True]]))
    alone = estimator(torch.tensor([[1.0, 0.0, 1.0]]), torch.ones(1, 3, dtype=torch.bool))
    assert masked[0, 1] == 0
    assert torch.equal(masked[0, [0, 2, 3]], alone[0])


@ALL
@pytest.mark.parametrize(
    ("rewards", "valid"),
    [([1.0, 1.0, 1.0], [1, 1, 1]), ([1.0, 0.0, 0.0], [1, 0, 0]), ([1.0, 0.0, 1.0], [0, 0, 0]), ([0.1, 0.1, 7.0], [1, 1, 0])],
)
def test_groups_without_a_comparison_give_exact_zeros(estimator: Estimator, rewards: list[float], valid: list[int]) -> None:
    group, mask = torch.tensor([rewards]), torch.tensor([valid], dtype=torch.bool)
    assert torch.equal(estimator(group, mask), torch.zeros(1, 3))
    assert not has_signal(group, mask).item()


@settings(deadline=None, max_examples=50)
@given(
    rewards=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=5, max_size=5), min_size=1, max_size=4),
    bits=st.integers(0, 2**20 - 1),
    noise=st.sampled_from([float("nan"), float("inf"), 5.0]),
    name=st.sampled_from(sorted(ESTIMATORS)),
)
def test_advantages_sum_to_zero_and_ignore_what_is_invalid(rewards: list[list[float]], bits: int, noise: float, name: str) -> None:
    values = torch.tensor(rewards)
    valid = torch.tensor([bool(bits >> place & 1) for place in range(values.numel())]).reshape(values.shape)
    advantages = ESTIMATORS[name](values, valid)
    assert torch.equal(advantages, ESTIMATORS[name](values.masked_fill(~valid, noise), valid))
    assert torch.all(advantages[~valid] == 0)
    assert torch.allclose(advantages.sum(dim=1), torch.zeros(len(rewards)), atol=1e-4)
