"""The learner of reinforcement learning: TRL's `GRPOTrainer`, fed with trajectories that rollouts made elsewhere.

Losses, clipping, KL, optimiser, checkpoints and logging are TRL's; what a batch holds, the critic, the entropy bonus and further figures
are ours.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.estimators import ESTIMATORS
from rl.learning.adapters import adapter_arguments
from rl.learning.batches import Row, check_images, collate_rows, rows_of, split_rows, with_observations, without_placeholders
from rl.learning.checkpointing import Stateful, load_parts, save_parts
from rl.learning.config import CRITICS, ReinforceConfig
from rl.learning.correction import correct
from rl.learning.critic import NAME, Critic, estimate, value_loss
from rl.learning.describing import describe
from rl.learning.filters import Collected, Drop, Filter
from rl.learning.likelihoods import crossed, prompt_information, ratio_figures, staleness_figures
from rl.learning.signs import SignMonitor
from rl.learning.training import gather_policy, trainer_arguments, write_policy
from rl.learning.trl_trainers import GRPOConfig, GRPOTrainer
from rl.policies.policy import as_saved, save_policy
from rl.policies.vision import Vision
from warehouse.records import Trajectory

if TYPE_CHECKING:
    from rl.engines.sending import WeightSender

Collect = Callable[[int], Collected]
"""Gives the trajectories of a step (from 1), with their rewards; a group is the trajectories of one task."""

Publish = Callable[[Path, int], None]
"""Loads the weights in a folder into the engines, as the version that trajectories of the next step are sampled from."""

OnDrops = Callable[[int, Sequence[Drop]], None]
"""Told of the trajectories of a step that a correction rejected."""

WEIGHTS_KEPT = 2
"""Published weights that stay on disk, so that an engine that starts again finds those it is told to load."""

ROW_MEANS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""Losses that TRL averages over the rows of a pass; `bnpo` is one over its tokens, the others over the whole step's tokens."""


class ReinforceTrainer(GRPOTrainer):
    """TRL's trainer with another source of batches.

    `GRPOTrainer` wants prompts and reward functions of its own. It gets placeholders, sized so that a pass over the prompts is one step of
    ours; nothing reads them, for `_prepare_inputs` never generates and never scores.

    Where there are several workers, each runs this. The main one collects, and all have the whole of each step, so that advantages and
    means are those of one process; of the passes each makes its own, and accelerate takes the mean of their gradients.
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
        parts: Mapping[str, Stateful] | None = None,
        on_drops: OnDrops = lambda step, drops: None,
        sender: WeightSender | None = None,
        vision: Vision | None = None,
    ) -> None:
        """Prepare training `model` by `config`, with checkpoints and published weights below `output`.

        `parts` stand in the checkpoints by their names, beside what the trainer itself has to remember. A `sender` brings weights to the
        engines before they are written. `vision` is what the policy makes of images, where it takes any.
        """
        self._vision = vision
        self._critic = Critic(model, seed) if config.estimator in CRITICS else None
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=_arguments(config, output, seed, vision is not None),
            train_dataset=Dataset.from_dict({"prompt": [""] * config.passes * config.learner.workers}),
            processing_class=tokenizer,
            **adapter_arguments(config.lora, seed),
        )
        self._workers = self.accelerator.num_processes
        self._config = config
        self._output = output
        self._collect = collect
        self._publish = publish
        self._on_drops = on_drops
        self._sender = sender
        self.signs = SignMonitor(config.health.limits)
        self._parts: dict[str, Stateful] = {"signs": self.signs, **(parts or {})}
        self._step_inputs: list[dict[str, Any]] = []
        self._differences: list[float] = []
        self._log_ratios: list[Tensor] = []
        self._value_errors: list[float] = []

    def publish_weights(self, version: int) -> None:
        """Write the weights into a folder of their own and have the engines load them; those that they are sent to have them before."""
        folder = self._output / "weights" / f"{version:06d}"
        policy, weights = gather_policy(self, self._config.lora, without=(NAME,))
        if self.accelerator.is_main_process:
            if self._sender is not None:
                self._sender.send(as_saved(policy, weights), folder, version)
            save_policy(policy, self._tokenizer, folder, weights)
            self._publish(folder, version)
            for old in sorted(folder.parent.iterdir())[:-WEIGHTS_KEPT]:
                shutil.rmtree(old)

    def write(self, folder: Path) -> None:
        """Write the policy as it is now into `folder`."""
        write_policy(self, self._tokenizer, folder, self._config.lora, without=(NAME,))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what is no mean over passes to TRL's figures: the largest difference of log-probabilities, and the importance ratios.

        The difference is over tokens that the engines sampled with the weights that the learner has: older ones are to differ.
        """
        differences, log_ratios, value_errors = map(gather_object, (self._differences, self._log_ratios, self._value_errors))
        if differences:
            logs["logprob_difference"] = max(differences)
        if log_ratios:
            logs.update(ratio_figures(torch.cat(log_ratios)))
        if value_errors:
            logs["value_loss"] = sum(value_errors) / self._config.epochs
        for collected in (self._differences, self._log_ratios, self._value_errors):
            collected.clear()
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.signs.fatal is not None:
            self.signs.acknowledge()
        if self.accelerator.is_main_process:
            save_parts(Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}", self._parts)
        super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_parts(Path(resume_from_checkpoint), self._parts)

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
        collected = self._collect(step) if self.accelerator.is_main_process else None
        times.append(time.monotonic())
        collected, times = broadcast_object_list([(collected, times)])[0]  # all workers go by what the main one has
        rows = self._seen(rows_of(collected.kept, ESTIMATORS.get(self._config.estimator), collected.environments))
        if not self._config.mask_observations:
            rows = [with_observations(row, said) for row, said in zip(rows, self._said(rows)[0], strict=True)]
        figures = {"publish_seconds": times[1] - times[0], "collect_seconds": times[2] - times[1]}
        figures |= describe(collected.trajectories) | staleness_figures(rows, step - 1) | self._information(collected.trajectories)
        if self._critic or self._config.correction.needed:
            rows, collected, found = self._reviewed(step, rows, collected)
            figures |= found
        for name, value in {**figures, **collected.figures()}.items():
            self._metrics["train"][name].append(value)
        return self._passes(rows)

    def _seen(self, rows: Sequence[Row]) -> list[Row]:
        """The rows as the policy can learn from them. Raises as `check_images` does."""
        check_images(rows, self._vision is not None, self._config.mask_observations)
        if self._vision is None:
            return list(rows)
        return [without_placeholders(row, self._vision.placeholder_id, self._tokenizer.pad_token_id) for row in rows]

    def _reviewed(self, step: int, rows: Sequence[Row], collected: Collected) -> tuple[list[Row], Collected, dict[str, float]]:
        """The rows with advantages against what the critic says now, and corrected for what was sampled by older policies."""
        logprobs, values = self._said(rows)
        if self._critic:
            rows = estimate(rows, values, logprobs, self._config.estimator, self._config.critic)
        if not self._config.correction.needed:
            return list(rows), collected, {}
        corrected = correct(rows, logprobs, self._config.correction)
        reason = f"importance ratios outside {self._config.correction.reject_below:g} to {self._config.correction.reject_above:g}"
        drops = [Drop(row.trajectory_id, row.task_key, Filter.OFF_POLICY, reason) for row in corrected.rejected]
        self._on_drops(step, drops)
        collected = replace(collected, drops=(*collected.drops, *drops))
        return list(corrected.rows), collected, {"rejected_tokens": corrected.rejected_tokens}

    @torch.no_grad()
    def _said(self, rows: Sequence[Row]) -> tuple[list[list[float]], list[list[float]]]:
        """For each row what the policy and the critic say now of each token of its completion: log-probabilities, and values.

        Each worker asks about rows of its own, in as many passes as the others, for sharded weights are gathered by all at once.
        """
        if not rows:
            return [], []
        passes = min(self._config.passes, math.ceil(len(rows) / self._workers))
        numbers = {id(row): number for number, row in enumerate(rows)}
        said: list[tuple[int, list[float], list[float]]] = []
        for part in (part or rows[:1] for part in self._own(split_rows(rows, passes * self._workers))):
            tensors = self._tensors(part)
            logprobs = super()._get_per_token_logps_and_entropies(self.model, *_whole(tensors), **self._pixels(tensors))[0]
            values = self._critic.values(logprobs.size(1)) if self._critic else logprobs[:, :0]
            for row, *both in zip(part, logprobs.tolist(), values.tolist(), strict=True):
                said.append((numbers[id(row)], *(each[: len(row.completion_ids)] for each in both)))
        found = {number: (logprobs, values) for number, logprobs, values in gather_object(said)}
        return [found[number][0] for number in range(len(rows))], [found[number][1] for number in range(len(rows))]

    @torch.no_grad()
    def _information(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """How much the first actions of the step say of their prompts; nothing where there are fewer than two tasks."""
        rows = crossed(trajectories, self._config.health.information_tasks)
        if not rows:
            return {}
        tensors = self._tensors(rows)
        scores = (super()._get_per_token_logps_and_entropies(self.model, *_whole(tensors))[0] * tensors["tool_mask"]).sum(dim=1)
        return {"prompt_information": prompt_information(scores.reshape(math.isqrt(len(rows)), -1))}

    def _passes(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The tensors of each pass, empty where there is nothing to learn.

        Rows without an advantage have no gradient unless the loss holds another term, so they are left out here, but not of the means.
        """
        useful = rows if self.beta or self._config.entropy_bonus or self._critic else [row for row in rows if row.teaches]
        tokens = sum(row.action_tokens for row in rows)
        parts = split_rows(useful, self._parts_of_a_step)
        silent = [_silent(row) for row in useful[:1]]
        for start in range(0, len(parts), self._workers):
            together = parts[start : start + self._workers]
            most = max(map(len, together))  # workers exchange figures in each pass, and these must be of equal number
            parts[start : start + self._workers] = [[*part, *silent * (most - len(part))] for part in together]
        return [self._pass(part, len(rows), tokens) if part else {} for part in self._own(parts)]

    @property
    def _parts_of_a_step(self) -> int:
        """Passes of all workers together."""
        return self._config.passes * self._workers

    def _own(self, parts: Sequence[list[Row]]) -> list[list[Row]]:
        """This worker's share of the parts of a step; what the workers have in hand at a time is of similar length."""
        return list(parts[self.accelerator.process_index :: self._workers])

    def _pass(self, part: Sequence[Row], rows: int, tokens: int) -> dict[str, Any]:
        inputs: dict[str, Any] = {**self._tensors(part), "num_items_in_batch": torch.tensor(tokens, device=self.accelerator.device)}
        inputs["loss_scale"] = self._loss_scale(part, rows, tokens)
        if self.beta:
            inputs["ref_per_token_logps"] = self._reference_logprobs(inputs)
        return inputs

    def _tensors(self, rows: Sequence[Row]) -> dict[str, Any]:
        tensors = {name: value.to(self.accelerator.device) for name, value in collate_rows(rows, self._tokenizer.pad_token_id).items()}
        return {**tensors, "images": [row.images for row in rows]}

    def _pixels(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What TRL hands to the model of the images of a pass. It is made when the pass is due: pixels take far more room than files."""
        images = [image for own in inputs["images"] for image in own]
        if self._vision is None or not images:
            return {}
        pixels = {name: value.to(self.accelerator.device) for name, value in self._vision.inputs(images).items()}
        return {**pixels, "num_images": [len(own) for own in inputs["images"]]}

    def _loss_scale(self, part: Sequence[Row], rows: int, tokens: int) -> float:
        """What makes TRL's mean of the means of passes a mean over the step, for passes differ in size."""
        if self.loss_type in ROW_MEANS:
            return len(part) * self._parts_of_a_step / rows
        if self.loss_type == "bnpo":
            return sum(row.action_tokens for row in part) * self._parts_of_a_step / tokens
        return 1.0

    @torch.no_grad()
    def _reference_logprobs(self, inputs: dict[str, Any]) -> Tensor:
        """Those of the policy that training began with: a model of its own, or this one without its adapters."""
        bare = self.accelerator.unwrap_model(self.model).disable_adapter() if self.ref_model is None else nullcontext()
        with bare:
            model, pixels = self.ref_model or self.model, self._pixels(inputs)
            logprobs: Tensor = super()._get_per_token_logps_and_entropies(model, *_whole(inputs), **pixels)[0]
        return logprobs

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logprobs, self._entropies = result[0].detach(), result[1]
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss of one pass; where there is nothing to learn, a zero that leaves the gradients unset.

        Without gradients AdamW leaves the weights alone, whereas gradients of zero would go on along the momentum.
        """
        if not inputs:
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        loss: Tensor = super()._compute_loss(model, {**inputs, **self._pixels(inputs)}) * inputs["loss_scale"]  # type: ignore[no-untyped-call]
        mask = inputs["tool_mask"].bool()
        log_ratios = self._logprobs - inputs["sampled_logps"]
        self._log_ratios.append(log_ratios[mask].cpu())
        done, updates = divmod(self.state.global_step, self._config.epochs)
        of_these_weights = mask & (inputs["versions"] == done)
        if updates == 0 and of_these_weights.any():
            self._differences.append(log_ratios[of_these_weights].abs().max().item())
        if self._config.entropy_bonus:
            loss = loss - self._config.entropy_bonus * self._workers * self._entropies[mask].sum() / inputs["num_items_in_batch"]
        return self._with_critic(self._critic, loss, inputs) if self._critic else loss

    def _with_critic(self, critic: Critic, loss: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The policy's loss and the critic's, or the critic's alone while it warms up: the policy then has no gradient at all."""
        mask = inputs["tool_mask"].bool()
        values = critic.values(mask.size(1))
        errors = value_loss(values, inputs["old_values"], inputs["returns"], mask, self._config.critic.clip) / inputs["num_items_in_batch"]
        self._value_errors.append(errors.item())
        errors = errors * self._workers  # for accelerate takes the mean of theirs
        if not self._warming_up:
            return loss + errors
        return errors if self._workers == 1 else errors + 0 * loss  # among workers each weight must have a gradient

    @property
    def _warming_up(self) -> bool:
        """Whether the critic still learns alone."""
        return self._critic is not None and self.state.global_step < self._config.critic.warmup_steps * self._config.epochs

    def _hold_policy(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before a step of the optimiser: while the critic warms up, the policy has no gradient at all."""
        if self._warming_up:
            for parameter in (each for group in optimizer.param_groups[:-1] for each in group["params"]):
                parameter.grad = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's, where the critic's head has a rate of its own and no decay."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self._critic is not None:
            own = list(self._critic.head.parameters())
            ids = {id(parameter) for parameter in own}
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
            optimizer.add_param_group({**optimizer.defaults, "params": own, "lr": self._config.critic.learning_rate, "weight_decay": 0.0})
            optimizer.register_step_pre_hook(self._hold_policy)
        return optimizer


def _silent(row: Row) -> Row:
    """A row that says nothing to any loss."""
    zeros = (0,) * len(row.completion_ids)
    return replace(row, action_mask=zeros, advantages=tuple(map(float, zeros)))


def _whole(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int]:
    """Prompts and completions as one, their mask, and how many of the last tokens are the completions'."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    return ids, mask, inputs["completion_ids"].size(1)


def _arguments(config: ReinforceConfig, output: Path, seed: int, sees: bool) -> GRPOConfig:
    """TRL's arguments; the two prompts a pass and two generations a prompt are the placeholders' and stand for no number of ours.

    A pass without images leaves the weights that see without gradients, which several workers must be told of.
    """
    return GRPOConfig(
        **{**trainer_arguments(config, output, seed, config.steps * config.epochs), "ddp_find_unused_parameters": sees},
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
        logging_nan_inf_filter=False,  # a loss that is no number must be seen
    )


def _no_reward(prompts: Sequence[str], **kwargs: Any) -> list[float | None]:
    """Stands where TRL wants a reward function; rewards come with the trajectories."""
    raise AssertionError("rewards come with the trajectories")
