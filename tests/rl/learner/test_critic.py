"""PPO: what the critic is asked, what it learns, and where it must leave no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rl.learner.base import PassRecord
from rl.learner.batches import estimate, rows_of
from rl.learner.config import CriticConfig, ReinforceConfig
from rl.learner.local import LocalLearner
from rl.learner.losses import VALUE_HEAD, value_loss
from rl.policies.policy import load_policy
from tests.rl.toy import (
    OBSERVATION,
    Sampler,
    Scripted,
    batches_of,
    good_probability,
    learn,
    rows_with_advantages,
    sample_pairs,
    trajectory,
    turn,
    weights_differ,
)  # fmt: skip

LORA = {"rank": 4, "alpha": 64}

pytestmark = pytest.mark.engine


def config_of(**changes: Any) -> ReinforceConfig:
    base = ReinforceConfig(steps=6, tasks_per_step=2, samples_per_task=16, trajectories_per_pass=12, learning_rate=1e-2, save_every=2)
    return ReinforceConfig.model_validate({**base.model_dump(), "estimator": "gae", **changes})


def test_a_value_that_moved_too_far_gives_no_gradient() -> None:
    values = torch.tensor([[0.5, 0.1, 9.0]], requires_grad=True)
    old, returns, mask = torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([[True, True, False]])
    loss = value_loss(values, old, returns, mask, clip=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * ((0.2 - 1) ** 2 + (0.1 - 1) ** 2))
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0, pytest.approx(-0.9), 0.0]]


def test_advantages_are_against_the_critic_and_whitened_over_the_step() -> None:
    turns = [turn(0, [5, 6], [-1.0, -1.0], OBSERVATION), turn(1, [7], [-1.0], tool="answer")]
    rows = rows_of([trajectory("a", 0, turns, 1.0), trajectory("b", 0, turns[1:], 0.0)], None)
    good, bad = estimate(rows, [[0.5, 0.25, 9, 9, 9, 0.75], [0.5]], [], "gae", CriticConfig())
    assert good.returns == (1, 1, 0, 0, 0, 1) and bad.returns == (0.0,)
    assert good.values == (0.5, 0.25, 9, 9, 9, 0.75)
    found = torch.tensor([0.5, 0.75, 0.25, -0.5])
    whitened = ((found - found.mean()) / found.std(correction=0)).tolist()
    assert [*good.advantages, *bad.advantages] == pytest.approx([whitened[0], whitened[1], 0, 0, 0, whitened[2], whitened[3]], abs=1e-6)


def test_values_are_those_of_the_state_that_each_token_was_written_in(policy: Path, tmp_path: Path) -> None:
    learner = LocalLearner(*load_policy(policy), config_of(), tmp_path, 1)
    critic = learner.loss.critic
    assert critic is not None
    torch.nn.init.normal_(critic.head.value.weight)
    rows, apart = rows_with_advantages(learner, sample_pairs(policy), config_of()), load_policy(policy)[0]
    assert len(rows) == 8
    for row in rows:
        with torch.no_grad():
            states = apart.base_model(torch.tensor([row.prompt_ids + row.completion_ids])).last_hidden_state[0]
            alone = critic.head(states[len(row.prompt_ids) - 1 : -1])
        assert row.values == pytest.approx(alone.tolist(), abs=1e-5)


def gradients(policy: Path, folder: Path, trunk_gradient: float, **changes: Any) -> tuple[dict[str, torch.Tensor], float]:
    """Those of one pass over trajectories, by the names of the model's weights, with its value loss."""
    config = config_of(critic={"warmup_steps": 0, "trunk_gradient": trunk_gradient}, trajectories_per_pass=32, **changes)
    learner, record = LocalLearner(*load_policy(policy), config, folder, 1), PassRecord()
    loss = learner.loss
    assert loss.critic is not None
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(3)
        for parameter in loss.critic.parameters:
            parameter.add_(0.3 * torch.randn_like(parameter))
    (inputs,) = batches_of(learner, sample_pairs(policy), config)
    loss.loss(loss.model, inputs, record, 0, False).backward()  # type: ignore[no-untyped-call]
    found = {name: each.grad for name, each in loss.model.named_parameters() if each.grad is not None}
    return found, record.value_errors[-1]


@pytest.mark.parametrize(("lora", "attention"), [(None, "varlen"), ({"rank": 4}, "sdpa")])
def test_shared_layers_get_the_configured_share_of_the_critics_gradient(
    policy: Path, tmp_path: Path, lora: dict[str, int] | None, attention: str
) -> None:
    given = {"lora": lora, "attn_implementation": attention}
    (none, error), (half, _), (whole, _) = (gradients(policy, tmp_path / str(part), part, **given) for part in (0.0, 0.5, 1.0))
    assert error > 0
    heads = {name for name in none if VALUE_HEAD in name}
    trunk = [name for name in none if name not in heads and "lora_A" not in name]  # B begins at 0, so A has no gradient
    assert len(heads) == 4 and all(torch.allclose(none[name], whole[name], atol=1e-7) for name in heads)
    for name in trunk:
        assert torch.allclose(half[name] - none[name], 0.5 * (whole[name] - none[name]), rtol=1e-3, atol=1e-6)
    assert max((whole[name] - none[name]).abs().max().item() for name in trunk) > 1e-4
    bare, _ = gradients(policy, tmp_path / "again", 0.0, **given)
    assert all(torch.equal(bare[name], none[name]) for name in trunk)


@pytest.mark.parametrize(
    ("estimator", "lora", "trunk_gradient"),
    [
        ("gae", None, 0.0),
        pytest.param("vtrace", None, 0.0, marks=pytest.mark.long),
        pytest.param("bilevel_gae", LORA, 0.0, marks=pytest.mark.long),
        pytest.param("vtrace", LORA, 0.5, marks=pytest.mark.long),
    ],
)
def test_rewarded_actions_become_more_likely_and_the_critic_learns(
    policy: Path, tmp_path: Path, estimator: str, lora: dict[str, int] | None, trunk_gradient: float
) -> None:
    sampler, errors = Sampler(16), list[float]()
    critic = {"learning_rate": 1e-2, "warmup_steps": 3, "clip": 0.5, "trunk_gradient": trunk_gradient}
    config = config_of(estimator=estimator, steps=48 if lora else 16, critic=critic, lora=lora, learning_rate=3e-2 if lora else 1e-2)
    result = learn(
        policy, tmp_path, config, Scripted(sampler.collect, sampler.publish, lambda step, figures: errors.append(figures["value_loss"])), 1
    )
    before, after = (good_probability(folder) for folder in (policy, result.path))
    assert after > before + (0.02 if lora else 0.2), "adapters leave the embeddings of a policy that has not learnt anything as they are"
    assert errors[3] < errors[0]
    weights = load_file(result.path / "model.safetensors")
    assert not any(name.startswith(VALUE_HEAD) for name in weights)
    before_weights = load_file(policy / "model.safetensors")
    assert set(weights) == set(before_weights)
    if lora is not None:
        moved = {name.split(".")[-2] for name in weights if not torch.equal(weights[name], before_weights[name])}
        assert moved == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
        last = sorted((result.path / "checkpoints").glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))[-1]
        heads = {
            name.split(VALUE_HEAD)[1].removeprefix(".modules_to_save.default")
            for name in load_file(last / "model.safetensors")
            if VALUE_HEAD in name
        }
        assert heads == {".hidden.weight", ".hidden.bias", ".value.weight", ".value.bias"}, "whole, and not by adapters"


@pytest.mark.parametrize(("lora", "trunk_gradient"), [(None, 0.5), pytest.param({"rank": 4}, 0.0, marks=pytest.mark.long)])
def test_the_policy_is_frozen_during_critic_warmup_and_a_stopped_run_resumes_exactly(
    policy: Path, tmp_path: Path, lora: dict[str, int] | None, trunk_gradient: float
) -> None:
    config = config_of(critic={"warmup_steps": 3, "trunk_gradient": trunk_gradient}, lora=lora)
    versions: dict[int, dict[str, torch.Tensor]] = {}
    whole, resumed = Sampler(16), Sampler(16)

    def publish(path: Path, version: int) -> None:
        versions[version] = load_policy(path)[0].state_dict()
        whole.publish(path, version)

    expected = learn(policy, tmp_path / "whole", config, Scripted(whole.collect, publish, lambda step, figures: None), 1)
    assert all(torch.equal(versions[0][name], versions[3][name]) for name in versions[0])
    assert any(not torch.equal(versions[3][name], versions[4][name]) for name in versions[0])

    def stopping(step: int) -> Any:
        if step == 4:
            raise KeyboardInterrupt
        return resumed.collect(step)

    for collect in (stopping, resumed.collect):
        try:
            result = learn(policy, tmp_path / "resumed", config, Scripted(collect, resumed.publish, lambda step, figures: None), 1)
        except KeyboardInterrupt:
            continue
    assert weights_differ(result.path, expected.path) < 1e-6
