"""TRL's `GRPOTrainer` over rows of trajectories that rollouts made elsewhere: micro-batches, the loss over them, the critic, figures.

Losses, clipping, KL, optimiser, checkpoints and logging are TRL's; what a batch holds, the critic, the entropy bonus and further figures
are ours. Which rows a step has is `next_batch`'s to say, in `rl/loop/step.py`.
"""

from __future__ import annotations

import inspect
import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.policies.vision import Vision
from rl.training.attention import joins_rows, set_attention, shares_prompts
from rl.training.base import (
    GRPOConfig,
    GRPOTrainer,
    Stateful,
    adapter_arguments,
    checkpoint_step,
    load_state,
    offloading,
    save_state,
    trainer_arguments,
    write_policy,
)
from rl.training.batches import Row, collate_rows, share_groups, share_rows, split_rows
from rl.training.config import ReinforceConfig
from rl.training.critic import NAME, Critic, value_loss
from rl.training.figures import crossed, prompt_information, ratio_figures
from rl.training.monitor import MetricMonitor
from rl.training.optimizers import optimizer_factory
from rl.training.packing import JoinedRows
from rl.training.speed import StepTimes, StepTokens, device_name, flops_of, peak_memory_gib, sampler_errors, speed_figures
from rl.training.token_scores import can_choose, chosen_scores, tiled_scores
from warehouse.records import Trajectory

ROW_MEANS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""Losses that TRL averages over the rows of a pass; `bnpo` is one over its tokens, the others over the whole step's tokens."""


MicroBatch = dict[str, Any]
"""The tensors of one forward and backward pass, as TRL's loss takes them; empty where there is nothing to learn."""


class RowTrainer(GRPOTrainer):
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
        state: Mapping[str, Stateful],
        vision: Vision | None,
    ) -> None:
        """Prepare training `model` by `config`; `state` stands in the checkpoints below `output`, beside the trainer's own."""
        self._vision = vision
        self._critic = Critic(model, seed, config.critic.trunk_gradient) if config.has_critic else None
        remove_dropout(model)
        set_attention(model, config)
        self._joins = joins_rows(model)
        self._shares = shares_prompts(model)
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=_arguments(model, config, output, seed, vision is not None),
            train_dataset=Dataset.from_dict({"prompt": [""] * config.most_passes * config.learner.workers}),
            processing_class=tokenizer,
            **adapter_arguments(config.lora, seed, NAME if config.has_critic else None),
        )
        count_from_first(model)
        if self.ref_model is not None:
            reference = self.accelerator.unwrap_model(self.ref_model)
            remove_dropout(reference)  # TRL loads it as it was stored, and with its class's attention
            set_attention(reference, config)
            count_from_first(reference)
        self.optimizer_cls_and_kwargs = optimizer_factory(config)  # TRL's own trainer takes none
        self._workers = self.accelerator.num_processes
        self._config = config
        self._output = output
        self.monitor = MetricMonitor(config.health.limits)
        self._state: dict[str, Stateful] = {"monitor": self.monitor, **state}
        self.checkpointed: int | None = None
        """The step of the last checkpoint, written or gone on from."""
        self._step_inputs: list[MicroBatch] = []
        self._differences: list[Tensor] = []
        self._times: StepTimes | None = None
        self._began = 0.0
        self._tokens = StepTokens(0)
        self._log_ratios: list[Tensor] = []
        self._value_errors: list[float] = []
        self._chooses = can_choose(model, self._workers)
        self._wanted: Tensor | None = None
        self._joined: JoinedRows | None = None
        self._offloading = offloading(config, self.model)

    @abstractmethod
    def next_batch(self, step: int) -> list[MicroBatch]:
        """The micro-batches of `step` (from 1); a subclass makes them."""

    def write(self, folder: Path) -> None:
        """Write the policy as it is now into `folder`."""
        write_policy(self, self._tokenizer, folder, self._config, without=(NAME,))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what is no mean over passes to TRL's figures: differences of log-probabilities, importance ratios, times and memory.

        The differences are over tokens that the engines sampled with the weights that the learner has: the step's own, and the probes
        that follow each update. Tokens of older weights are to differ.
        """
        differences, log_ratios, value_errors = map(gather_object, (self._differences, self._log_ratios, self._value_errors))
        if differences:
            logs.update(sampler_errors(torch.cat(differences)))
        if self._times is not None:
            logs.update(self._speed(replace(self._times, whole=time.monotonic() - self._began)))
            self._times = None
        if log_ratios:
            logs.update(ratio_figures(torch.cat(log_ratios)))
        if value_errors:
            logs["value_loss"] = sum(value_errors) / self._config.epochs
        for collected in (self._differences, self._log_ratios, self._value_errors):
            collected.clear()
        super().log(logs, start_time)

    def _speed(self, times: StepTimes) -> dict[str, float]:
        bare = self.accelerator.unwrap_model(self.model)
        bare = bare if isinstance(bare, PreTrainedModel) else bare.get_base_model()
        device = device_name() if self.accelerator.device.type == "cuda" else ""
        tokens = self._tokens.together(gather_object([self._tokens]))
        figures = speed_figures(times, tokens, flops_of(bare, tokens.mean_row), self._workers, device)
        return {**figures, "learner_memory_gib": max(gather_object([peak_memory_gib()]))}

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.monitor.fatal is not None:
            self.monitor.acknowledge()
        if self.accelerator.is_main_process:
            save_state(Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}", self._state)
        super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        self.checkpointed = self.state.global_step // self._config.epochs

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_state(Path(resume_from_checkpoint), self._state)
        self.checkpointed = checkpoint_step(Path(resume_from_checkpoint)) // self._config.epochs

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """The next micro-batch of the step; a new step begins where all of the one before are done.

        TRL would pad all of a step to one width and split it by chance; micro-batches of similar length save most of that padding.
        """
        passes = self._config.most_passes
        if self._step % (passes * self._config.epochs) == 0:
            self._step_inputs = self.next_batch(self.state.global_step // self._config.epochs + 1)
        return self._step_inputs[self._step % passes]

    @torch.no_grad()
    def score(self, rows: Sequence[Row]) -> tuple[list[list[float]], list[list[float]]]:
        """For each row, the policy's log-probability of each token of its completion, and the critic's value of the state before it.

        Each worker scores rows of its own, in as many micro-batches as the others, for sharded weights are gathered by all at once.
        """
        if not rows:
            return [], []
        passes = min(self._passes_of(rows), math.ceil(len(rows) / self._workers))
        numbers = {id(row): number for number, row in enumerate(rows)}
        scored: list[tuple[int, list[float], list[float]]] = []
        for part in (part or rows[:1] for part in self._own(self._split(rows, passes * self._workers))):
            tensors = self._tensors(part)
            logprobs = self._logprobs_of(self.model, tensors, tensors["completion_mask"])
            values = self._critic.values(logprobs.size(1), self._joined) if self._critic else logprobs[:, :0]
            for row, *both in zip(part, logprobs.tolist(), values.tolist(), strict=True):
                scored.append((numbers[id(row)], *(each[: len(row.completion_ids)] for each in both)))
        found = {number: (logprobs, values) for number, logprobs, values in gather_object(scored)}
        return [found[number][0] for number in range(len(rows))], [found[number][1] for number in range(len(rows))]

    @torch.no_grad()
    def prompt_information(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """How much the first actions of the step say of their prompts; nothing where there are fewer than two tasks."""
        rows = crossed(trajectories, self._config.health.information_tasks)
        if not rows:
            return {}
        tensors = self._tensors(rows)
        scores = (self._logprobs_of(self.model, tensors, tensors["tool_mask"]) * tensors["tool_mask"]).sum(dim=1)
        return {"prompt_information": prompt_information(scores.reshape(math.isqrt(len(rows)), -1))}

    def micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """The micro-batches of a step's rows, this worker's share of them, behind empty ones where the step might have had more rows.

        Rows without an advantage have no gradient unless the loss holds another term, so they are left out here, but not of the means.
        """
        useful = rows if self.beta or self._config.entropy_bonus or self._critic else [row for row in rows if row.teaches]
        tokens = sum(row.action_tokens for row in rows)
        parts = self._split(useful, self._passes_of(useful) * self._workers)
        padding = [_without_loss(row) for row in useful[:1]]
        for start in range(0, len(parts), self._workers):
            together = parts[start : start + self._workers]
            most = max(map(len, together))  # workers exchange figures in each pass, and these must be of equal number
            parts[start : start + self._workers] = [[*part, *padding * (most - len(part))] for part in together]
        # The last pass is the one that workers exchange gradients in, so it is no empty one.
        parts = [*([] for _ in range(self._micro_batches_of_a_step - len(parts))), *parts]
        return [self._micro_batch(part, len(rows), tokens) if part else {} for part in self._own(parts)]

    @property
    def _micro_batches_of_a_step(self) -> int:
        """Those of all workers together, empty ones among them."""
        return self._config.most_passes * self._workers

    def _passes_of(self, rows: Sequence[Row]) -> int:
        """The passes of each worker that the rows are shared out to: more than a step's where its filters had more groups sampled."""
        return min(max(self._config.passes, self._config.passes_of(len(rows))), self._config.most_passes)

    def _split(self, rows: Sequence[Row], parts: int) -> list[list[Row]]:
        """Rows that are joined fill passes by their tokens; rows side by side are to be of similar length."""
        return share_groups(rows, parts) if self._shares else share_rows(rows, parts) if self._joins else split_rows(rows, parts)

    def _own(self, parts: Sequence[list[Row]]) -> list[list[Row]]:
        """This worker's share of the parts of a step; what the workers have in hand at a time is of similar length."""
        return list(parts[self.accelerator.process_index :: self._workers])

    def _micro_batch(self, part: Sequence[Row], rows: int, tokens: int) -> MicroBatch:
        inputs: MicroBatch = {**self._tensors(part), "num_items_in_batch": torch.tensor(tokens, device=self.accelerator.device)}
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
            return len(part) * self._micro_batches_of_a_step / rows
        if self.loss_type == "bnpo":
            return sum(row.action_tokens for row in part) * self._micro_batches_of_a_step / tokens
        return 1.0

    @torch.no_grad()
    def _reference_logprobs(self, inputs: dict[str, Any]) -> Tensor:
        """Those of the policy that training began with: a model of its own, or this one without its adapters."""
        bare = self.accelerator.unwrap_model(self.model).disable_adapter() if self.ref_model is None else nullcontext()
        with bare:
            return self._logprobs_of(self.ref_model or self.model, inputs, inputs["tool_mask"])

    def _logprobs_of(self, model: Any, inputs: Mapping[str, Any], wanted: Tensor) -> Tensor:
        """The log-probability of each token of the completions (B, C), of those that are `wanted` at least."""
        self._wanted = wanted
        result: Tensor = self._scores(model, *_sequences(inputs), **self._pixels(inputs))[0]
        return result

    def _scores(self, model: Any, ids: Tensor, attention: Tensor, count: int, **kwargs: Any) -> Any:
        """What TRL wants of the last `count` tokens: log-probabilities, entropies, and the loss of the experts' balance."""
        pictured = kwargs.get("pixel_values") is not None
        balances = bool(kwargs.get("compute_aux_loss"))
        self._joined = self._join(ids, attention.bool(), count, balances) if self._joins and not pictured else None
        if self._wanted is None or pictured or not (self._joined or self._chooses):
            return super()._get_per_token_logps_and_entropies(model, ids, attention, count, **kwargs)
        chosen = torch.zeros_like(ids, dtype=torch.bool)
        chosen[:, -count:] = self._wanted.bool()
        with self.accelerator.autocast():
            *scores, balance = self._scores_of(model, ids, chosen, attention, balances)
        return *(None if each is None else each.new_zeros(ids.shape).masked_scatter(chosen, each)[:, -count:] for each in scores), balance

    def _join(self, ids: Tensor, mask: Tensor, count: int, balances: bool) -> JoinedRows:
        """The rows of a pass as one; prompts in common stand there once, unless experts are balanced over all tokens."""
        if not self._shares or balances:
            return JoinedRows.of(mask)
        return JoinedRows.with_shared_prompts(mask, ids, ids.size(1) - count)

    def _scores_of(
        self, model: Any, ids: Tensor, chosen: Tensor, attention: Tensor, balances: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities and entropies of the chosen tokens, row by row."""
        rows = self._joined
        inputs: dict[str, Any] = {"attention": attention} if rows is None else rows.inputs()
        if rows is not None:
            ids, chosen = rows.join(ids), rows.join(chosen)
        if self._chooses:
            bare = self.accelerator.unwrap_model(model)
            bare = bare if isinstance(bare, PreTrainedModel) else bare.get_base_model()
            inputs |= {"temperature": self.temperature, "entropy_gradient": self._config.entropy_bonus > 0}
            return *chosen_scores(bare, ids, chosen, **inputs), None
        return tiled_scores(model, ids, chosen, **inputs, **({"output_router_logits": True} if balances else {}))

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = self._scores(*args, **kwargs)
        self._logprobs, self._entropies = result[0].detach(), result[1]
        return result

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's, with what the backward pass needs kept where the configuration says."""
        with self._offloading:
            return super().training_step(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss of one pass; where there is nothing to learn, a zero that leaves the gradients unset.

        Without gradients AdamW leaves the weights alone, whereas gradients of zero would go on along the momentum.
        """
        if not inputs:
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        self._wanted = inputs["tool_mask"]
        loss: Tensor = super()._compute_loss(model, {**inputs, **self._pixels(inputs)}) * inputs["loss_scale"]  # type: ignore[no-untyped-call]
        self._tokens = self._tokens.with_pass(*_computed(inputs, self._joined))
        mask = inputs["tool_mask"].bool()
        log_ratios = self._logprobs - inputs["sampled_logps"]
        self._log_ratios.append(log_ratios[mask].cpu())
        done, updates = divmod(self.state.global_step, self._config.epochs)
        of_these_weights = mask & (inputs["versions"] == done)
        if updates == 0 and of_these_weights.any():
            self._differences.append(log_ratios[of_these_weights].detach().cpu())
        if self._config.entropy_bonus:
            loss = loss - self._config.entropy_bonus * self._workers * self._entropies[mask].sum() / inputs["num_items_in_batch"]
        return self._with_critic(self._critic, loss, inputs) if self._critic else loss

    def _with_critic(self, critic: Critic, loss: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The policy's loss and the critic's, or the critic's alone while it warms up: the policy then has no gradient at all."""
        mask = inputs["tool_mask"].bool()
        values = critic.values(mask.size(1), self._joined, alone=self._warming_up)
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
        if not self._warming_up:
            return
        for group in optimizer.param_groups[:-1]:
            for parameter in group["params"]:
                parameter.grad = None
                if self._config.learner.sharded and parameter not in optimizer.state:  # checkpoints of shards must have one for each
                    optimizer.state[parameter] = first_state(parameter, bool(group["fused"]))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's, where the critic's head has a rate of its own and no decay."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self._critic is not None:
            own = self._critic.parameters
            ids = {id(parameter) for parameter in own}
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
            optimizer.add_param_group({**optimizer.defaults, "params": own, "lr": self._config.critic.learning_rate, "weight_decay": 0.0})
            optimizer.register_step_pre_hook(self._hold_policy)
        return optimizer


def remove_dropout(model: PreTrainedModel) -> None:
    """Set every dropout of `model` to 0, in its configuration too, which attention and some layers read it from.

    Engines sample without it: under dropout the learner would score each action by another policy than the one that took it.
    """
    configs = {id(module.config): module.config for module in model.modules() if isinstance(module, PreTrainedModel)}
    for holder in (*model.modules(), *configs.values()):
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0
        for name, value in vars(holder).items():
            if "drop" in name and isinstance(value, float):
                setattr(holder, name, 0.0)


def count_from_first(model: PreTrainedModel) -> None:
    """Have `model` count the positions of a row from its first token, and not from the padding before it.

    Where positions are learnt, as in GPT-2, the log-probabilities are others behind padding than those that were sampled. Models of images
    count by themselves.
    """
    backbone = model.base_model
    if model.config.get_text_config() is model.config and "position_ids" in inspect.signature(backbone.forward).parameters:
        backbone.register_forward_pre_hook(_with_positions, with_kwargs=True)


def _with_positions(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    attention = named.get("attention_mask")
    if attention is None or named.get("position_ids") is not None:
        return None
    return given, {**named, "position_ids": (attention.long().cumsum(dim=1) - 1).clamp(min=0)}


def first_state(parameter: Tensor, fused: bool) -> dict[str, Tensor]:
    """What AdamW begins with at the first gradient of `parameter`: `torch/optim/adamw.py` of torch, `_init_group` of Adam."""
    step = torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu")
    return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def _without_loss(row: Row) -> Row:
    """The first tokens of the row, without actions and advantages: they add 0 to any loss."""
    return Row(
        row.prompt_ids[:1],
        row.completion_ids[:1],
        action_mask=(0,),
        logprobs=(0.0,),
        advantages=(0.0,),
        turn_ends=(0,),
        turn_rewards=(),
        trajectory_id=row.trajectory_id,
        task_key=row.task_key,
    )


def _sequences(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int]:
    """Prompts and completions as one, their mask, and how many of the last tokens are the completions'."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    return ids, mask, inputs["completion_ids"].size(1)


def _computed(inputs: Mapping[str, Tensor], joined: JoinedRows | None) -> tuple[int, list[tuple[int, int]]]:
    """The tokens of a pass, and of each sequence that went through the model the tokens before it and its own."""
    lengths = (inputs["prompt_mask"].sum(dim=1) + inputs["completion_mask"].sum(dim=1)).tolist()
    return sum(lengths), joined.spans if joined else [(0, length) for length in lengths]


def _arguments(model: PreTrainedModel, config: ReinforceConfig, output: Path, seed: int, sees: bool) -> GRPOConfig:
    """TRL's arguments; the two prompts a pass and two generations a prompt are the placeholders' and stand for no number of ours.

    A pass without images leaves the weights that see without gradients, which several workers must be told of.
    """
    return GRPOConfig(
        **{**trainer_arguments(model, config, output, seed, config.steps * config.epochs), "ddp_find_unused_parameters": sees},
        save_steps=config.save_every * config.epochs,
        logging_steps=config.epochs,
        per_device_train_batch_size=2,
        num_generations=2,
        gradient_accumulation_steps=config.most_passes,
        num_iterations=config.epochs,
        shuffle_dataset=False,
        loss_type=config.loss_type,
        importance_sampling_level=config.importance_sampling_level,
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        beta=config.beta,
        use_bias_correction_kl=True,  # TRL's default from 1.16 on, and another gradient than without: docs/learning.md
        temperature=config.temperature,
        max_completion_length=config.max_completion_tokens,
        logging_nan_inf_filter=False,  # a loss that is no number must be seen
    )


def _no_reward(prompts: Sequence[str], **kwargs: Any) -> list[float | None]:
    """Stands where TRL wants a reward function; rewards come with the trajectories."""
    raise AssertionError("rewards come with the trajectories")
