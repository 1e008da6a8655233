"""Losses and gradients of a step against TRL's own trainer and against the papers' formulas in float64; what may move no weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from rl.advantages import ESTIMATORS
from rl.learner.batches import Row, collate_rows, rows_of
from rl.learner.config import CRITICS, ReinforceConfig
from rl.learner.local import LocalLearner
from rl.learner.trainers import GRPOConfig, GRPOTrainer
from rl.policies.policy import load_policy
from tests.rl.toy import batches_of, gradients
from warehouse.records import Outcome, Trajectory

pytestmark = pytest.mark.engine

CLIP_LOW, CLIP_HIGH, LENGTH = 0.2, 0.28, 9
LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "estimator": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}
BASE = ReinforceConfig(tasks_per_step=2, samples_per_task=4, trajectories_per_pass=8, max_completion_tokens=LENGTH)


def config_of(name: str, **changes: Any) -> ReinforceConfig:
    return ReinforceConfig.model_validate({**BASE.model_dump(), **LOSSES.get(name, {}), **changes})


def flat_gradient(model: PreTrainedModel) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def ours(policy: Path, folder: Path, config: ReinforceConfig, trajectories: Sequence[Trajectory]) -> tuple[float, Tensor]:
    """The loss and the gradient of an optimizer step of this package's learner."""
    learner = LocalLearner(*load_policy(policy), config, folder, 1)
    loss = gradients(learner, batches_of(learner, trajectories, config))
    return loss.item(), flat_gradient(learner.loss.model)


def trls(policy: Path, folder: Path, config: ReinforceConfig, rows: Sequence[Row]) -> tuple[float, Tensor]:
    """The same of TRL's own trainer, with one advantage for each row, all of them in one pass."""
    model, tokenizer = load_policy(policy)
    arguments = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=2, num_generations=2, use_cpu=True, bf16=False, report_to="none", max_steps=1,
        loss_type=config.loss_type, importance_sampling_level=config.importance_sampling_level, epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH, beta=0.0, temperature=1.0, max_completion_length=LENGTH,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, reward_funcs=lambda prompts, **kwargs: [0.0], args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [""]}), processing_class=tokenizer,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    batch: dict[str, Any] = collate_rows(rows, tokenizer.pad_token_id)
    batch["advantages"] = torch.tensor([max(row.advantages, key=abs) for row in rows])
    batch["num_items_in_batch"] = batch["tool_mask"].sum()
    loss = trainer._compute_loss(model, batch)
    loss.backward()
    return loss.item(), flat_gradient(model)


@pytest.mark.parametrize("per_pass", [8, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_match_trls_trainer(policy: Path, stale: list[Trajectory], tmp_path: Path, name: str, per_pass: int) -> None:
    config = config_of(name, trajectories_per_pass=per_pass)
    loss, gradient = ours(policy, tmp_path, config, stale)
    expected_loss, expected = trls(policy, tmp_path, config, rows_of(stale, ESTIMATORS[config.estimator]))
    assert abs(loss - expected_loss) < 1e-6
    assert (gradient - expected).abs().max() < 1e-6
    assert expected.norm() > 1e-2


def clipped(ratio: Tensor, advantage: float) -> Tensor:
    """min(r A, clip(r, 1 - ε_low, 1 + ε_high) A)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)


def grpo_by_formula(log_ratios: list[Tensor], advantages: list[float]) -> Tensor:
    """GRPO, eq. 3 of arXiv 2402.03300 without KL: the mean over trajectories of the mean over their tokens."""
    return -torch.stack([clipped(r.exp(), a).mean() for r, a in zip(log_ratios, advantages, strict=True)]).mean()


def dr_grpo_by_formula(log_ratios: list[Tensor], advantages: list[float]) -> Tensor:
    """Dr. GRPO, arXiv 2503.20783, §3.2: sums over tokens, divided by a constant length."""
    return -torch.stack([clipped(r.exp(), a).sum() / LENGTH for r, a in zip(log_ratios, advantages, strict=True)]).mean()


def dapo_by_formula(log_ratios: list[Tensor], advantages: list[float]) -> Tensor:
    """DAPO, eq. 8 of arXiv 2503.14476: the mean over all tokens of the step."""
    return -torch.cat([clipped(r.exp(), a) for r, a in zip(log_ratios, advantages, strict=True)]).mean()


def gspo_by_formula(log_ratios: list[Tensor], advantages: list[float]) -> Tensor:
    """GSPO, eq. 5 and 7 of arXiv 2507.18071: one ratio for each trajectory, the geometric mean of its tokens'."""
    return -torch.stack([clipped(r.mean().exp(), a) for r, a in zip(log_ratios, advantages, strict=True)]).mean()


FORMULAS: dict[str, Callable[[list[Tensor], list[float]], Tensor]] = {
    "grpo": grpo_by_formula, "dr_grpo": dr_grpo_by_formula, "dapo": dapo_by_formula, "gspo": gspo_by_formula,
}  # fmt: skip


def log_ratios_by_hand(model: PreTrainedModel, rows: Sequence[Row]) -> list[Tensor]:
    """log π - log π_old of each row's action tokens, one row at a time, without padding."""
    found = []
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        logprobs = model(ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        own = logprobs.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        found.append((own - torch.tensor(row.logprobs, dtype=torch.float64))[torch.tensor(row.action_mask).bool()])
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_match_the_papers_formula_in_float64(policy: Path, stale: list[Trajectory], tmp_path: Path, name: str) -> None:
    config = config_of(name)
    rows = rows_of(stale, ESTIMATORS[config.estimator])
    model = load_policy(policy, torch.float64)[0]
    ratios = log_ratios_by_hand(model, rows)
    expected = FORMULAS[name](ratios, [row.advantages[0] for row in rows])
    expected.backward()
    loss, gradient = ours(policy, tmp_path, config, stale)
    assert abs(loss - expected.item()) < 1e-6
    assert (gradient - flat_gradient(model)).abs().max() < 1e-6
    everywhere = torch.cat(ratios).exp()
    assert (everywhere < 1 - CLIP_LOW).any() and (everywhere > 1 + CLIP_HIGH).any()


@pytest.mark.parametrize("name", [*LOSSES, "process"])
def test_no_token_of_an_observation_has_a_gradient(policy: Path, stale: list[Trajectory], tmp_path: Path, name: str) -> None:
    """Through the loss, KL and entropy bonus alike: the derivative by each token's log-probability and entropy."""
    config = config_of(name, beta=0.1, entropy_bonus=0.1, **({"estimator": name} if name in ESTIMATORS else {}))
    learner = LocalLearner(*load_policy(policy), config, tmp_path, 1)
    (inputs,) = batches_of(learner, stale, config)
    shape = inputs["tool_mask"].shape
    logprobs, entropies = (torch.full(shape, value, requires_grad=True) for value in (-1.5, 2.0))

    def leaves(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, None]:
        learner.loss._logprobs, learner.loss._entropies = logprobs.detach(), entropies
        return logprobs, entropies, None

    learner.loss._get_per_token_logps_and_entropies = leaves  # type: ignore[method-assign]
    gradients(learner, [inputs])
    observed = inputs["tool_mask"] == 0
    assert observed.any() and (inputs["completion_mask"].bool() & observed).any()
    for leaf in (logprobs, entropies):
        assert leaf.grad is not None
        assert torch.all(leaf.grad[observed] == 0)
        assert leaf.grad[~observed].abs().max() > 0


@pytest.mark.parametrize("estimator", [*ESTIMATORS, *sorted(CRITICS)])
def test_no_invalid_trajectory_moves_a_weight(policy: Path, stale: list[Trajectory], tmp_path: Path, estimator: str) -> None:
    config = config_of("dapo", estimator=estimator, beta=0.1, entropy_bonus=0.1, critic={"warmup_steps": 0})
    faulty = zip(stale[:2], (None, 9.0), strict=True)
    invalid = [replace(each, id=f"{each.id}-faulty", outcome=Outcome.INVALID, reward=reward) for each, reward in faulty]
    lonely = [replace(stale[0], id="lonely", task_key="lonely", outcome=Outcome.INVALID, reward=1.0)]
    loss, gradient = ours(policy, tmp_path, config, stale)
    with_them = ours(policy, tmp_path, config, [*invalid, *stale, *lonely])
    assert with_them[0] == loss
    assert torch.equal(with_them[1], gradient)
    assert gradient.norm() > 1e-3


def test_the_entropy_bonus_is_the_mean_over_all_tokens_of_the_step(policy: Path, stale: list[Trajectory], tmp_path: Path) -> None:
    plain, _ = ours(policy, tmp_path, config_of("grpo"), stale)
    whole, gradient = ours(policy, tmp_path, config_of("grpo", entropy_bonus=0.5), stale)
    cut, gradient_cut = ours(policy, tmp_path, config_of("grpo", entropy_bonus=0.5, trajectories_per_pass=3), stale)
    model = load_policy(policy, torch.float64)[0]
    entropies = []
    for row in rows_of(stale, ESTIMATORS["grpo"]):
        logits = model(torch.tensor([row.prompt_ids + row.completion_ids])).logits[0, len(row.prompt_ids) - 1 : -1]
        own = torch.distributions.Categorical(logits=logits).entropy()
        entropies.append(own[torch.tensor(row.action_mask).bool()])
    assert whole == pytest.approx(plain - 0.5 * torch.cat(entropies).mean().item(), abs=1e-5)
    assert cut == pytest.approx(whole, abs=1e-6)
    assert (gradient - gradient_cut).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["dapo", "gspo"])
def test_the_divergence_is_weighted_by_the_ratio(policy: Path, stale: list[Trajectory], tmp_path: Path, name: str) -> None:
    """ρ (e^d - d - 1), DeepSeek-V3.2, arXiv 2512.02556: of a policy that has moved from where it began."""
    config, beta = config_of(name, beta=0.3), 0.3
    model, tokenizer = load_policy(policy)
    moved, start = (load_policy(policy, torch.float64)[0] for _ in range(2))
    learner = LocalLearner(model, tokenizer, config, tmp_path, 1)
    batches, generator = batches_of(learner, stale, config), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for own, exact in zip(model.parameters(), moved.parameters(), strict=True):
            own.add_(0.05 * torch.randn(own.shape, generator=generator))
            exact.copy_(own)
    loss = gradients(learner, batches)
    rows = rows_of(stale, ESTIMATORS[config.estimator])
    with torch.no_grad():
        began = log_ratios_by_hand(start, rows)
    parts = []
    for row, log_ratio, at_first in zip(rows, log_ratios_by_hand(moved, rows), began, strict=True):
        ratio, d = (log_ratio.mean() if name == "gspo" else log_ratio).exp(), at_first - log_ratio
        parts.append(beta * ratio * (d.exp() - d - 1) - clipped(ratio, row.advantages[0]))
    expected = torch.stack([part.mean() for part in parts]).mean() if name == "gspo" else torch.cat(parts).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert (flat_gradient(model) - flat_gradient(moved)).norm() < 1e-4 * flat_gradient(moved).norm()
