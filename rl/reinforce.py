"""Reinforcement learning: TRL's `GRPOTrainer`, fed with trajectories that rollouts made elsewhere.

Each step publishes the weights to the engines, asks `collect` for the step's trajectories and makes one optimiser step on them (or several,
`epochs`). Losses, clipping, KL, optimiser, checkpoints and logging are TRL's; advantages, curriculum and rollouts are ours.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rl.batches import Row, collate_rows, describe, rows_of, split_rows
from rl.config import ReinforceConfig
from rl.estimators import ESTIMATORS
from rl.policy import load_policy, save_policy
from rl.training import OnMetric, TrainResult, last_figures, run_trainer, trainer_arguments
from warehouse.records import Trajectory

Collect = Callable[[int], Sequence[Trajectory]]
"""Gives the trajectories of a step (from 1), with their rewards; a group is the trajectories of one task."""

Publish = Callable[[Path, int], None]
"""Loads the weights in a folder into the engines, as the version that trajectories of the next step are sampled from."""

WEIGHTS_KEPT = 2
"""Published weights that stay on disk, so that an engine that starts again finds those it is told to load."""

ROW_MEANS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""Losses that TRL averages over the rows of a pass; `bnpo` is one over its tokens, the others over the whole step's tokens."""


def train_reinforce(
    policy_path: Path,
    output: Path,
    config: ReinforceConfig,
    collect: Collect,
    publish: Publish,
    on_metric: OnMetric,
    seed: int,
) -> TrainResult:
    """Train the policy in `policy_path` by `config.steps` steps and write the result into `output`.

    The same call goes on where an earlier one was stopped: it publishes the weights of the last checkpoint and collects the step after
    it. `publish` is called before each `collect`, with the number of steps done as the version, and once at the end.

    Figures of each step: loss, grad_norm, entropy, clip_ratio/*, reward, reward_std, success, valid, turns, tool_calls,
    action_tokens, zero_variance, seconds of collecting, publishing and learning, and `logprob_difference`: the largest difference
    between the engine's log-probability of an action token and the learner's before it changes.
    """
    model, tokenizer = load_policy(policy_path)
    trainer = ReinforceTrainer(model, tokenizer, config, output, seed, collect, publish)
    started = time.monotonic()
    run_trainer(trainer, on_metric, config.epochs)
    trainer.publish_weights(config.steps)
    save_policy(model, tokenizer, output)
    figures = {"steps": config.steps, "seconds": time.monotonic() - started, **last_figures(trainer)}
    return TrainResult(output, figures)


class ReinforceTrainer(GRPOTrainer):
    """TRL's trainer with another source of batches.

    `GRPOTrainer` wants prompts and reward functions of its own. It gets placeholders, sized so that a pass over the prompts is one step of
    ours; nothing reads them, for `_prepare_inputs` never generates and never scores.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: ReinforceConfig,
        output: Path,
        seed: int,
        collect: Collect,
        publish: Publish,
    ) -> None:
        """Prepare training `model` by `config`, with checkpoints and published weights below `output`."""
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=_arguments(config, output, seed),
            train_dataset=Dataset.from_dict({"prompt": [""] * config.passes}),
            processing_class=tokenizer,
        )
        self._config = config
        self._output = output
        self._collect = collect
        self._publish = publish
        self._step_inputs: list[dict[str, Any]] = []
        self._differences: list[float] = []

    def publish_weights(self, version: int) -> None:
        """Write the weights into a folder of their own and have the engines load them."""
        folder = self._output / "weights" / f"{version:06d}"
        model = self.accelerator.unwrap_model(self.model)
        save_policy(model, self._tokenizer, folder)
        self._publish(folder, version)
        for old in sorted(folder.parent.iterdir())[:-WEIGHTS_KEPT]:
            shutil.rmtree(old)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the largest difference of log-probabilities, which is no mean, to TRL's figures."""
        if self._differences:
            logs["logprob_difference"] = max(self._differences)
            self._differences.clear()
        super().log(logs, start_time)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """The next pass of the step's batch, which is collected where all passes of the one before are done.

        TRL would pad all of a step to one width and split it by chance; passes of similar length save most of that padding.
        """
        passes = self._config.passes
        if self._step % (passes * self._config.epochs) == 0:
            self._step_inputs = self._next_batch(self.state.global_step // self._config.epochs + 1)
        return self._step_inputs[self._step % passes]

    def _next_batch(self, step: int) -> list[dict[str, Any]]:
        """Publish what the last step made, collect the trajectories of this one and lay out its passes."""
        times = [time.monotonic()]
        self.publish_weights(step - 1)
        times.append(time.monotonic())
        trajectories = self._collect(step)
        times.append(time.monotonic())
        seconds = {"publish_seconds": times[1] - times[0], "collect_seconds": times[2] - times[1]}
        for name, value in {**describe(trajectories), **seconds}.items():
            self._metrics["train"][name].append(value)
        return self._passes(rows_of(trajectories, ESTIMATORS[self._config.estimator]))

    def _passes(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The tensors of each pass, empty where there is nothing to learn.

        Rows without an advantage have no gradient unless there is a KL term, so they are left out here, but not of the means.
        """
        useful = rows if self.beta else [row for row in rows if row.advantage]
        tokens = sum(row.action_tokens for row in rows)
        return [self._pass(part, len(rows), tokens) if part else {} for part in split_rows(useful, self._config.passes)]

    def _pass(self, part: Sequence[Row], rows: int, tokens: int) -> dict[str, Any]:
        tensors = {**collate_rows(part, self._tokenizer.pad_token_id), "num_items_in_batch": torch.tensor(tokens)}
        inputs: dict[str, Any] = {name: value.to(self.accelerator.device) for name, value in tensors.items()}
        inputs["loss_scale"] = self._loss_scale(part, rows, tokens)
        if self.beta:
            inputs["ref_per_token_logps"] = self._reference_logprobs(inputs)
        return inputs

    def _loss_scale(self, part: Sequence[Row], rows: int, tokens: int) -> float:
        """What makes TRL's mean of the means of passes a mean over the step, for passes differ in size."""
        if self.loss_type in ROW_MEANS:
            return len(part) * self._config.passes / rows
        if self.loss_type == "bnpo":
            return sum(row.action_tokens for row in part) * self._config.passes / tokens
        return 1.0

    @torch.no_grad()
    def _reference_logprobs(self, inputs: dict[str, Tensor]) -> Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logprobs: Tensor = super()._get_per_token_logps_and_entropies(self.ref_model, ids, mask, inputs["completion_ids"].size(1))[0]
        return logprobs

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss of one pass; where there is nothing to learn, a zero that leaves the gradients unset.

        Without gradients AdamW leaves the weights alone, whereas gradients of zero would go on along the momentum.
        """
        if not inputs:
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        loss: Tensor = super()._compute_loss(model, inputs) * inputs["loss_scale"]  # type: ignore[no-untyped-call]
        if self.state.global_step % self._config.epochs == 0:
            difference = (self._logprobs - inputs["old_per_token_logps"]).abs() * inputs["tool_mask"]
            self._differences.append(difference.max().item())
        return loss


def _arguments(config: ReinforceConfig, output: Path, seed: int) -> GRPOConfig:
    """TRL's arguments; the two prompts a pass and two generations a prompt are the placeholders' and stand for no number of ours."""
    return GRPOConfig(
        **trainer_arguments(config, output, seed, config.steps * config.epochs),
        save_steps=config.save_every * config.epochs,
        logging_steps=config.epochs,
        per_device_train_batch_size=2,
        num_generations=2,
        gradient_accumulation_steps=config.passes,
        num_iterations=config.epochs,
        shuffle_dataset=False,
        loss_type=config.loss_type,
        importance_sampling_level=config.importance_sampling_level,
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        beta=config.beta,
        temperature=config.temperature,
        max_completion_length=config.max_completion_tokens,
    )


def _no_reward(prompts: Sequence[str], **kwargs: Any) -> list[float | None]:
    """Stands where TRL wants a reward function; rewards come with the trajectories."""
    raise AssertionError("rewards come with the trajectories")
