"""Reinforcement learning on a toy: the real learner and a tiny real policy that samples for itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl.advantages import dr_grpo
from rl.curriculum import Curriculum, CurriculumConfig, GateConfig
from rl.learner.batches import rows_of
from rl.learner.config import MonitorConfig, ReinforceConfig
from rl.policies.policy import load_policy
from rl.rollouts.collect import Collected
from tests.rl.toy import OBSERVATION, Sampler, Scripted, good_probability, learn, sample_pairs, trajectory, turn, weights_differ
from warehouse.records import Outcome, Trajectory

pytestmark = pytest.mark.engine

CONFIG = ReinforceConfig(steps=6, tasks_per_step=2, samples_per_task=8, trajectories_per_pass=6, learning_rate=3e-3, save_every=2)


def quiet(step: int, figures: dict[str, float]) -> None:
    """Takes figures and does nothing with them."""


@pytest.fixture(scope="module")
def sampled(policy: Path) -> list[Trajectory]:
    """Trajectories of the initial policy with rewards that differ."""
    return sample_pairs(policy)


# Batches


def test_rows_alternate_actions_and_observations_without_the_tail() -> None:
    turns = [turn(0, [5, 6], [-1.0, -2.0], OBSERVATION), turn(1, [7], [-3.0], OBSERVATION)]
    (row,) = rows_of([trajectory("a", 0, turns, 1.0)], dr_grpo)
    assert row.completion_ids == (5, 6, *OBSERVATION, 7)
    assert row.action_mask == (1, 1, 0, 0, 0, 1)
    assert row.logprobs == (-1.0, -2.0, 0.0, 0.0, 0.0, -3.0)


def test_groups_are_tasks_in_any_order_without_invalid_trajectories() -> None:
    turns = [turn(0, [5], [-1.0])]
    rewards = [("a", 1.0), ("b", 0.0), ("a", 0.0), ("b", None), ("b", 0.5), ("a", None)]
    rows = rows_of([trajectory(task, number, turns, reward) for number, (task, reward) in enumerate(rewards)], dr_grpo)
    assert [row.advantages[0] for row in rows] == [0.5, -0.25, -0.5, 0.25]


# The trainer


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"loss_type": "grpo", "importance_sampling_level": "sequence", "estimator": "rloo"}, marks=pytest.mark.long),
        pytest.param({"loss_type": "cispo", "clip_high": 5.0, "epochs": 2, "beta": 0.05}, marks=pytest.mark.long),
        pytest.param({"optimizer": "muon"}, marks=pytest.mark.long),
    ],
    ids=["dapo", "gspo rloo", "cispo", "muon"],
)
def test_rewarded_actions_become_more_likely(policy: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    sampler, figures = Sampler(16), list[dict[str, float]]()
    config = CONFIG.model_validate({**CONFIG.model_dump(), "steps": 12, "samples_per_task": 16, "learning_rate": 1e-2, **changes})
    result = learn(policy, tmp_path, config, Scripted(sampler.collect, sampler.publish, lambda step, new: figures.append(new)), 1)
    before, after = (good_probability(folder) for folder in (policy, result.path))
    assert after > before + 0.2
    assert sampler.versions == list(range(13))
    assert len(figures) == 12
    assert max(step["logprob_difference"] for step in figures) < 1e-4
    expected = {"loss", "grad_norm", "entropy", "reward", "reward_std", "success", "valid", "turns", "tool_calls", "zero_variance"}
    assert expected <= set(figures[0])
    assert len(list((tmp_path / "weights").iterdir())) == 2


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.long)])
def test_a_stopped_run_resumes_and_ends_like_an_uninterrupted_one(policy: Path, tmp_path: Path, optimizer: str) -> None:
    """With the same weights, and with the same state of its curriculum."""
    settings = CurriculumConfig(rounds=(2, 3, 4), gate=GateConfig(steps=2, success=0.01), hops=(1,))
    config = CONFIG.model_copy(update={"optimizer": optimizer, "samples_per_task": 4})

    def train(folder: Path, last: int) -> tuple[dict[int, int], list[int]]:
        """The horizon of each step of a run that is killed at step `last`, and the versions that it published."""
        sampler, horizons, curriculum = Sampler(4), dict[int, int](), Curriculum(settings, [], 1)

        def collect(step: int) -> Collected:
            if step == last:
                raise KeyboardInterrupt
            horizons[step] = curriculum.horizon(step)
            collected = sampler.collect(step)
            solved = [replace(each, outcome=Outcome.SUCCESS, horizon=horizons[step]) for each in collected.trajectories]
            curriculum.observe(step, solved)
            return collected

        with suppress(KeyboardInterrupt):
            learn(policy, folder, config, Scripted(collect, sampler.publish, quiet, state={"curriculum": curriculum}), 1)
        return horizons, sampler.versions

    whole, _ = train(tmp_path / "whole", 99)
    assert list(whole.values()) == [2, 2, 3, 3, 4, 4]
    assert train(tmp_path / "resumed", 4)[0] == {step: whole[step] for step in (1, 2, 3)}
    assert train(tmp_path / "resumed", 99) == ({step: whole[step] for step in (3, 4, 5, 6)}, [2, 3, 4, 5, 6])
    assert weights_differ(tmp_path / "whole", tmp_path / "resumed") < 1e-6
    assert weights_differ(tmp_path / "whole", policy) > 1e-3


def test_a_step_without_a_gradient_leaves_the_weights_unchanged(policy: Path, sampled: list[Trajectory], tmp_path: Path) -> None:
    useless = [replace(each, reward=1.0) for each in sampled]
    steps = {1: sampled, 2: useless, 3: [replace(each, outcome=Outcome.INVALID, reward=None) for each in sampled], 4: []}
    published: dict[int, dict[str, torch.Tensor]] = {}
    figures: dict[int, dict[str, float]] = {}
    run = Scripted(
        lambda step: Collected(tuple(steps[step])),
        lambda path, version: published.update({version: load_policy(path)[0].state_dict()}),
        lambda step, new: figures.update({step: new}),
    )
    learn(policy, tmp_path, CONFIG.model_copy(update={"steps": 4, "weight_decay": 0.1, "health": MonitorConfig(limits=())}), run, 1)
    names = list(published[0])
    assert any(not torch.equal(published[0][name], published[1][name]) for name in names)
    assert all(torch.equal(published[1][name], published[4][name]) for name in names)
    assert [figures[step].get("valid") for step in (1, 2, 3, 4)] == [1.0, 1.0, 0.0, 0.0]
    assert figures[2]["zero_variance"] == 1.0
    assert figures[2]["grad_norm"] == 0.0
    shares = [sum(value for name, value in found.items() if name.startswith("share/")) for found in figures.values()]
    assert shares == pytest.approx([1.0] * 4) and all(found["learner_memory_gib"] > 0 for found in figures.values())
    assert [figures[step]["learner_tokens_per_second"] > 0 for step in (1, 2, 3, 4)] == [True, False, False, False]
    assert figures[1]["token_mult_prob_error"] >= 1
