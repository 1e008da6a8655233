"""Correction for samples of older policies: weights and rejection against their formulas, V-trace against a loop in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl.advantages import grpo, vtrace
from rl.learner.batches import Row, accepted, correct, masked, ratios, rows_of, truncated, with_observations
from rl.learner.config import CorrectionConfig, ReinforceConfig
from tests.rl.toy import OBSERVATION, trajectory, turn

MASK = torch.tensor([[True, True, False, True], [True, False, False, False]])
RATIOS = torch.tensor([[4.0, 0.25, 9.0, 1.5], [0.4, 9.0, 9.0, 9.0]], dtype=torch.float64)
LOGS = RATIOS.log()


def close(found: torch.Tensor, expected: list[list[float]]) -> bool:
    return torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_ratios_are_per_token_or_per_sequence() -> None:
    assert close(ratios(LOGS, MASK, "token") * MASK, [[4, 0.25, 0, 1.5], [0.4, 0, 0, 0]])
    assert close(ratios(LOGS, MASK, "sequence"), [[1.5] * 4, [0.4] * 4])
    assert close(ratios(LOGS, MASK, "mean"), [[1.5 ** (1 / 3)] * 4, [0.4] * 4])
    assert ratios(torch.full((1, 1), 1e4), torch.ones(1, 1).bool(), "token").isfinite().all()


def test_weights_are_truncated_or_masked_and_rejected_tokens_leave_the_mask() -> None:
    assert close(truncated(LOGS, MASK, "token", 2.0), [[2, 0.25, 0, 1.5], [0.4, 0, 0, 0]])
    assert close(truncated(LOGS, MASK, "sequence", 1.0), [[1, 1, 0, 1], [0.4, 0, 0, 0]])
    assert close(masked(LOGS, MASK, "token", 0.3, 2.0), [[0, 0, 0, 1.5], [0.4, 0, 0, 0]])
    assert close(masked(LOGS, MASK, "sequence", 0.5, 2.0), [[1.5, 1.5, 0, 1.5], [0, 0, 0, 0]])
    assert accepted(LOGS, MASK, "token", 0.3, 2.0).tolist() == [[False, False, False, True], [True, False, False, False]]
    assert accepted(LOGS, MASK, "mean", 0.5, 2.0).tolist() == [[True, True, False, True], [False] * 4]


@pytest.fixture
def rows() -> list[Row]:
    """Two trajectories of one task; the first has an observation in its middle."""
    first = [turn(0, [5, 6], [-1.0, -2.0], OBSERVATION), turn(1, [7], [-3.0])]
    return rows_of([trajectory("a", 0, first, 1.0), trajectory("a", 1, [turn(0, [8], [-1.0])], 0.0)], grpo)


LEARNERS = [[-1.0 + math.log(4), -2.0, 0.7, 0.7, 0.7, -3.0 + math.log(0.25)], [-1.0 + math.log(0.1)]]


def test_weights_go_into_the_advantages_and_the_loss_begins_at_the_learner(rows: list[Row]) -> None:
    corrected = correct(rows, LEARNERS, CorrectionConfig(weights="truncated"))
    assert corrected.rejected == () and corrected.rejected_tokens == 0
    first, second = corrected.rows
    a = rows[0].advantages[0]
    assert first.advantages == pytest.approx((2 * a, a, 0, 0, 0, 0.25 * a))
    assert second.advantages == pytest.approx((-0.1 * a,))
    assert first.logprobs == pytest.approx((-1 + math.log(4), -2, 0, 0, 0, -3 + math.log(0.25)))
    assert first.sampled_logprobs == rows[0].logprobs


def test_rejected_trajectories_are_reported_and_rejected_tokens_counted(rows: list[Row]) -> None:
    whole = correct(rows, LEARNERS, CorrectionConfig(reject="mean"))
    assert [row.trajectory_id for row in whole.rejected] == ["a-1"]
    assert whole.rows == (rows[0],) and whole.rejected_tokens == 0.25
    tokens = correct(rows, LEARNERS, CorrectionConfig(reject="token"))
    assert [row.action_mask for row in tokens.rows] == [(0, 1, 0, 0, 0, 0)]
    assert tokens.rows[0].advantages == rows[0].advantages and tokens.rejected_tokens == 0.75
    assert correct([], [], CorrectionConfig(reject="token")).rows == ()


# V-trace


def vtrace_by_sums(
    rewards: list[float], values: list[float], ratios: list[float], discount: float, decay: float, most: float, most_traced: float
) -> tuple[list[float], list[float]]:
    """Eq. 1 of IMPALA written out as its double sum, for one row without gaps; nothing follows the last token."""
    after = [*values[1:], 0.0]
    surprises = [min(most, ratio) * (r + discount * n - v) for r, v, n, ratio in zip(rewards, values, after, ratios, strict=True)]
    targets = []
    for start in range(len(values)):
        total = values[start]
        for t in range(start, len(values)):
            carried = math.prod(decay * min(most_traced, ratio) for ratio in ratios[start:t])
            total += discount ** (t - start) * carried * surprises[t]
        targets.append(total)
    advantages = [r + discount * n - v for r, v, n in zip(rewards, values, [*targets[1:], 0.0], strict=True)]
    return advantages, targets


@pytest.mark.parametrize(("most", "most_traced", "decay"), [(1.0, 1.0, 1.0), (2.0, 1.0, 0.9), (0.7, 0.5, 0.8), (50.0, 50.0, 1.0)])
def test_vtrace_is_the_papers_sum_over_the_policys_own_tokens(most: float, most_traced: float, decay: float) -> None:
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(5, 9, generator=generator) > 0.3
    mask[:, 0] = True
    rewards, values, logs = (torch.randn(5, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    advantages, targets = vtrace(rewards, values, logs, mask, 0.97, decay, most, most_traced)
    for row in range(5):
        own = mask[row]
        expected = vtrace_by_sums(
            rewards[row, own].tolist(), values[row, own].tolist(), logs[row, own].exp().tolist(), 0.97, decay, most, most_traced
        )
        assert advantages[row, own].tolist() == pytest.approx(expected[0], abs=1e-9)
        assert targets[row, own].tolist() == pytest.approx(expected[1], abs=1e-9)
    assert (advantages[~mask] == 0).all() and (targets[~mask] == 0).all()
    disturbed = vtrace(
        rewards.masked_fill(~mask, 7.0), values.masked_fill(~mask, 7.0), logs.masked_fill(~mask, 7.0), mask, 0.97, decay, most, most_traced
    )
    assert torch.equal(disturbed[0], advantages) and torch.equal(disturbed[1], targets)


# In the learner


@pytest.mark.engine
def test_the_learners_gradient_is_the_sum_of_weighted_terms_and_rejections_are_drops(policy: Path, tmp_path: Path) -> None:
    from rl.learner.local import LocalLearner
    from rl.learner.metrics import MetricMonitor
    from rl.loop import ReinforceLoop
    from rl.policies.policy import load_policy
    from rl.rollouts.collect import Collected, RejectedSample
    from tests.rl.toy import Scripted, gradients, sample_pairs

    sampled = sample_pairs(policy)
    older = [
        replace(each, turns=tuple(replace(one, action_logprobs=tuple(p - 0.3 for p in one.action_logprobs)) for one in each.turns))
        for each in sampled
    ]
    far = replace(older[0], turns=tuple(replace(one, action_logprobs=(-30.0,) * len(one.action_ids)) for one in older[0].turns))
    base = ReinforceConfig(tasks_per_step=2, samples_per_task=4, loss_type="dapo", clip_high=0.2)
    told: list[RejectedSample] = []

    def gradient(trajectories: list, **correction: object) -> torch.Tensor:
        config = base.model_copy(update={"correction": CorrectionConfig.model_validate(correction)})
        learner = LocalLearner(*load_policy(policy), config, tmp_path, 1)
        run = Scripted(lambda step: Collected(tuple(trajectories)), record_drops=lambda step, drops: told.extend(drops))
        rows = ReinforceLoop(learner, run, run, config, {"monitor": MetricMonitor(())}, None).advantages(1, run.collect(1))[0]
        batches = learner.micro_batches(rows)
        if batches:
            gradients(learner, batches)
        parameters = learner.loss.model.parameters()
        return torch.cat([torch.zeros(1), *(parameter.grad.flatten() for parameter in parameters if parameter.grad is not None)])

    on_policy = gradient(sampled)
    assert on_policy.norm() > 1e-3
    assert torch.allclose(gradient(older, weights="truncated", above=10.0), math.exp(0.3) * on_policy, atol=1e-5)
    assert torch.allclose(gradient(older, weights="truncated", above=1.1), 1.1 * on_policy, atol=1e-5)
    assert torch.equal(gradient(older, weights="masked", above=1.2), torch.zeros(1)), "no token is left"
    assert not told
    gradient([far, *older[1:]], reject="mean", reject_above=5.0)
    assert [(drop.trajectory_id, drop.filter) for drop in told] == [(far.id, "off_policy")]


def test_an_observation_shares_the_advantage_of_the_action_before_and_takes_the_policys_own_log_probability() -> None:
    row = Row((1,), (5, 50, 51, 6), (1, 0, 0, 1), (-1.0, 0.0, 0.0, -2.0), (0.5, 0.0, 0.0, -0.5), (1, 0, 0, 1), (0.0, 1.0))
    unmasked = with_observations(row, [-9.0, -3.0, -4.0, -9.0])
    assert unmasked.action_mask == (1, 1, 1, 1)
    assert unmasked.logprobs == (-1.0, -3.0, -4.0, -2.0)
    assert unmasked.advantages == (0.5, 0.5, 0.5, -0.5)
    assert unmasked.action_tokens == 4
