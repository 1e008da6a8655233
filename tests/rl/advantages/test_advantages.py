"""Advantages by hand, and what may never enter them."""

from __future__ import annotations

import math
from statistics import fmean, pstdev, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl.advantages import (
    ESTIMATORS,
    Estimator,
    Groups,
    bilevel_gae,
    dr_grpo,
    environment_deviation,
    gae,
    grpo,
    has_signal,
    process,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    task_normalized,
    whiten,
)

ALL = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
CENTRED = sorted(set(ESTIMATORS) - {"reinforce_plus_plus", "task_normalized"})
"""Estimators whose advantages sum to 0 within a group; the other two centre over more than a group."""


def tensor(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def groups(rewards: list[list[float]], valid: list[list[int]] | None = None, tokens: list[list[int]] | None = None) -> Groups:
    """Groups of one environment; all valid and of one token where nothing else is said."""
    values = tensor(rewards)
    mask = torch.ones_like(values, dtype=torch.bool) if valid is None else torch.tensor(valid, dtype=torch.bool)
    return Groups.of(values, mask, None if tokens is None else torch.tensor(tokens))


def advantages(estimator: Estimator, given: Groups) -> Tensor:
    """The advantage of each trajectory, which has one turn here."""
    return estimator(given).reshape(given.rewards.shape)


def test_groups_are_centred_by_their_mean_by_the_others_mean_or_divided_by_the_deviation() -> None:
    rewards = [0.25, 1.0, 0.0, 0.75, 0.5]
    mean, deviation = fmean(rewards), stdev(rewards)
    others = [reward - fmean(rewards[:place] + rewards[place + 1 :]) for place, reward in enumerate(rewards)]
    assert dr_grpo(groups([rewards]))[0].tolist() == [reward - mean for reward in rewards]
    assert rloo(groups([rewards]))[0].tolist() == pytest.approx(others, abs=1e-12)
    assert grpo(groups([rewards]))[0].tolist() == pytest.approx([(reward - mean) / (deviation + 1e-4) for reward in rewards], abs=1e-12)


def test_reinforce_plus_plus_takes_mean_and_deviation_of_all_tokens_of_the_batch() -> None:
    given = groups([[1, 1], [1, 0]], tokens=[[2, 1], [1, 4]])
    tokens = [1, 1, 1, 1, 0, 0, 0, 0]
    assert reinforce_plus_plus(given).flatten().tolist() == pytest.approx(
        [(reward - fmean(tokens)) / pstdev(tokens) for reward in (1, 1, 1, 0)], abs=1e-6
    )
    centred = [0.5, -0.5, -0.5, -0.5, -0.5, 0, 0, 0]
    assert reinforce_plus_plus_baseline(given).flatten().tolist() == pytest.approx(
        [(value - fmean(centred)) / pstdev(centred) for value in (0, 0, 0.5, -0.5)], abs=1e-6
    )


def test_task_normalisation_gives_each_environment_a_scale_of_its_own() -> None:
    rewards, tokens = tensor([[1, 0], [1, 0], [9, 3]]), torch.tensor([[3, 1], [1, 1], [1, 2]])
    given = Groups.of(rewards, torch.ones(3, 2, dtype=torch.bool), tokens, torch.tensor([0, 0, 1]))
    once = grpo(given)
    first = [once[0, 0].item()] * 3 + [once[0, 1].item(), once[1, 0].item(), once[1, 1].item()]
    expected = [(value - fmean(first)) / (pstdev(first) + 1e-6) for value in (first[0], first[3], first[4], first[5])]
    assert task_normalized(given)[:2].flatten().tolist() == pytest.approx(expected, abs=1e-9)
    second = [once[2, 0].item(), once[2, 1].item(), once[2, 1].item()]
    assert task_normalized(given)[2].tolist() == pytest.approx(
        [(value - fmean(second)) / (pstdev(second) + 1e-6) for value in second[:2]], abs=1e-9
    )


def test_the_mean_is_per_question_and_the_deviation_per_environment() -> None:
    rewards = tensor([[1, 0], [1, 1], [5, 3]])
    given = Groups.of(rewards, torch.ones(3, 2, dtype=torch.bool), None, torch.tensor([0, 0, 1]))
    deviation = pstdev([1, 0, 1, 1])
    assert environment_deviation(given).flatten().tolist() == pytest.approx(
        [0.5 / (deviation + 1e-4), -0.5 / (deviation + 1e-4), 0, 0, 1 / (1 + 1e-4), -1 / (1 + 1e-4)], abs=1e-9
    )


def test_turn_rewards_are_normalised_together_and_summed_over_later_turns() -> None:
    rewards = torch.tensor([[[0.5, 1.0, 0.0], [0.0, 0.0, 99.0]]], dtype=torch.float64)
    turns = torch.tensor([[[1, 1, 1], [1, 1, 0]]], dtype=torch.bool)
    given = Groups(rewards.sum(2), turns.any(2), torch.ones(1, 2), torch.zeros(1, dtype=torch.long), rewards, turns)
    values = [0.5, 1.0, 0.0, 0.0, 0.0]
    a, b, c, d, e = [(value - fmean(values)) / (stdev(values) + 1e-4) for value in values]
    assert process(given).flatten().tolist() == pytest.approx([a + b + c, b + c, c, d + e, e, 0], abs=1e-12)


@ALL
def test_invalid_trajectories_are_excluded_from_means_and_deviations(estimator: Estimator) -> None:
    masked = advantages(estimator, groups([[1, 99, 0, 1]], [[1, 0, 1, 1]]))
    alone = advantages(estimator, groups([[1, 0, 1]]))
    assert masked[0, 1] == 0
    assert torch.allclose(masked[0, [0, 2, 3]], alone[0], atol=1e-12)
    assert alone.abs().max() > 0.1


@ALL
@pytest.mark.parametrize(
    ("rewards", "valid"),
    [([1.0, 1.0, 1.0], [1, 1, 1]), ([1.0, 0.0, 0.0], [1, 0, 0]), ([1.0, 0.0, 1.0], [0, 0, 0]), ([0.1, 0.1, 7.0], [1, 1, 0])],
)
def test_groups_without_a_comparison_give_exact_zeros(estimator: Estimator, rewards: list[float], valid: list[int]) -> None:
    given = groups([rewards], [valid])
    assert torch.equal(advantages(estimator, given), torch.zeros(1, 3, dtype=torch.float64))
    assert not has_signal(given).item()


@settings(deadline=None, max_examples=60)
@given(
    rewards=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=5, max_size=5), min_size=1, max_size=4),
    bits=st.integers(0, 2**20 - 1),
    noise=st.sampled_from([float("nan"), float("inf"), 5.0]),
    name=st.sampled_from(sorted(ESTIMATORS)),
)
def test_advantages_ignore_what_is_invalid_and_sum_to_zero(rewards: list[list[float]], bits: int, noise: float, name: str) -> None:
    values = tensor(rewards)
    valid = torch.tensor([bool(bits >> place & 1) for place in range(values.numel())]).reshape(values.shape)
    found = advantages(ESTIMATORS[name], Groups.of(values, valid))
    assert torch.equal(found, advantages(ESTIMATORS[name], Groups.of(values.masked_fill(~valid, noise), valid)))
    assert torch.all(found[~valid] == 0)
    assert torch.all(found[valid.sum(1) < 2] == 0)
    if name in CENTRED:
        assert torch.allclose(found.sum(dim=1), torch.zeros(len(rewards), dtype=torch.float64), atol=1e-9)


# With a critic


def gae_by_hand(rewards: list[float], values: list[float], discount: float, decay: float) -> list[float]:
    """GAE over the tokens of one policy alone, in Python's floats."""
    found = [0.0] * len(rewards)
    following = 0.0
    for token in reversed(range(len(rewards))):
        next_value = values[token + 1] if token + 1 < len(rewards) else 0.0
        following = rewards[token] + discount * next_value - values[token] + discount * decay * following
        found[token] = following
    return found


rows = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.lists(st.floats(-2, 2), min_size=size, max_size=size),
        st.lists(st.floats(-2, 2), min_size=size, max_size=size),
        st.lists(st.booleans(), min_size=size, max_size=size),
    )
)
shares = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@settings(deadline=None, max_examples=100)
@given(row=rows, discount=shares, decay=shares)
@pytest.mark.slow
def test_gae_skips_observation_tokens(row: tuple[list[float], list[float], list[bool]], discount: float, decay: float) -> None:
    rewards, values, mask = row
    written = [place for place, own in enumerate(mask) if own]
    expected = gae_by_hand([rewards[place] for place in written], [values[place] for place in written], discount, decay)
    found, returns = gae(tensor([rewards]), tensor([values]), torch.tensor([mask]), discount, decay)
    assert found[0, written].tolist() == pytest.approx(expected, abs=1e-9)
    assert returns[0, written].tolist() == pytest.approx(
        [value + values[place] for value, place in zip(expected, written, strict=True)], abs=1e-9
    )
    assert torch.all(found[~torch.tensor([mask])] == 0)


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 10**6), discount=shares, decay=shares, outer=shares)
def test_bilevel_gae_runs_over_turns_and_then_over_their_tokens(
    sizes: list[int], seed: int, discount: float, decay: float, outer: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    rewards, values = (torch.randn(total, generator=generator, dtype=torch.float64).tolist() for _ in range(2))
    ends = [sum(sizes[: turn + 1]) - 1 for turn in range(len(sizes))]
    starts = [end - size + 1 for end, size in zip(ends, sizes, strict=True)]
    by_turn = [sum(rewards[start : end + 1]) for start, end in zip(starts, ends, strict=True)]
    above = gae_by_hand(by_turn, [values[end] for end in ends], outer, decay)
    expected: list[float] = []
    for start, end, advantage in zip(starts, ends, above, strict=True):
        earned = [0.0] * (end - start) + [advantage + values[end]]
        expected += gae_by_hand(earned, values[start : end + 1], discount, decay)
    flags = torch.tensor([[place in ends for place in range(total)]])
    mask = torch.ones(1, total, dtype=torch.bool)
    found, _ = bilevel_gae(tensor([rewards]), tensor([values]), mask, flags, discount, decay, outer)
    assert found[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_action_tokens() -> None:
    mask = torch.tensor([[True, False, True], [True, True, False]])
    found = whiten(tensor([[1, 77, 2], [3, 4, -50]]), mask)
    own = found[mask].tolist()
    assert (fmean(own), pstdev(own)) == (pytest.approx(0), pytest.approx(1))
    assert torch.all(found[~mask] == 0)
    assert math.isclose(whiten(tensor([[2, 2, 2]]), torch.ones(1, 3, dtype=torch.bool)).abs().max().item(), 0.0)
