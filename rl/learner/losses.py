"""TRL's losses over externally sampled rows, with a critic, an entropy bonus, and custom token scoring.

TRL's `GRPOTrainer` holds model, adapters, reference and accelerate, and computes the loss of a micro-batch; `rl/learner/local.py` makes the
steps. Only the method that provides log-probabilities and entropies is overridden. The critic (PPO, arXiv 1707.06347) is a value head on
the policy's last hidden states; it is trained with the policy, starts anew in each run, and is stored in checkpoints only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.learner.base import PassRecord
from rl.learner.batches import Row, collate_rows
from rl.learner.config import ReinforceConfig
from rl.learner.packing import JoinedRows, can_choose, chosen_scores, joins_rows, set_attention, shares_prompts, tiled_scores
from rl.learner.trainers import GRPOConfig, GRPOTrainer, adapter_arguments, trainer_arguments
from rl.policies.vision import Vision

ROW_MEANS = frozenset({"grpo", "dr_grpo"})
"""Losses that TRL averages over the rows of a pass; `bnpo` averages over its tokens, the others over the step's tokens."""

MicroBatch = dict[str, Any]
"""Tensors of one pass, as TRL's loss takes them."""


class PolicyLoss(GRPOTrainer):
    """Loss of a micro-batch, and log-probabilities without gradient."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: ReinforceConfig,
        output: Path,
        seed: int,
        vision: Vision | None = None,
    ) -> None:
        """Trackers write below `output`; `vision` prepares images."""
        self.vision = vision
        self.critic = Critic(model, seed, config.critic.trunk_gradient) if config.has_critic else None
        remove_dropout(model)
        set_attention(model, config)
        self.joins = joins_rows(model)
        self.shares = shares_prompts(model)
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=_arguments(model, config, output, seed, vision is not None),
            train_dataset=Dataset.from_dict({"prompt": [""]}),  # required by the constructor, never read
            processing_class=tokenizer,
            **adapter_arguments(config.lora, seed, VALUE_HEAD if config.has_critic else None),
        )
        count_from_first(model)
        if self.ref_model is not None:
            reference = self.accelerator.unwrap_model(self.ref_model)
            remove_dropout(reference)  # TRL loads it as stored, with its class's default attention
            set_attention(reference, config)
            count_from_first(reference)
        self.current_gradient_accumulation_steps = config.most_passes  # divisor of TRL's means over passes
        self.workers = self.accelerator.num_processes
        self._config = config
        self._chooses = can_choose(model, self.workers)
        self._wanted: Tensor | None = None
        self._joined: JoinedRows | None = None

    def micro_batch(self, part: Sequence[Row], attempts: int, tokens: int) -> MicroBatch:
        """Tensors of a part of a step that has rows of `attempts` trajectories and `tokens` action tokens in total."""
        inputs: MicroBatch = {**self._tensors(part), "num_items_in_batch": torch.tensor(tokens, device=self.accelerator.device)}
        inputs["loss_scale"] = self._loss_scale(part, attempts, tokens)
        if self.beta:
            inputs["ref_per_token_logps"] = self._reference_logprobs(inputs)
        return inputs

    def loss(self, model: Any, inputs: MicroBatch, record: PassRecord, version: int | None, warming_up: bool) -> Tensor:
        """TRL's loss of one pass plus entropy bonus and value loss; measurements go to `record`.

        Args:
            version: weight version before the step's first update; None in later epochs.
            warming_up: train only the critic.
        """
        self._wanted = inputs["tool_mask"]
        loss: Tensor = self._compute_loss(model, {**inputs, **self._pixels(inputs)}) * inputs["loss_scale"]  # type: ignore[no-untyped-call]
        record.tokens = record.tokens.with_pass(*_computed(inputs, self._joined))
        mask = inputs["tool_mask"].bool()
        log_ratios = self._logprobs - inputs["sampled_logps"]
        record.log_ratios.append(log_ratios[mask].cpu())
        of_these_weights = mask & (inputs["versions"] == version) if version is not None else torch.zeros_like(mask)
        if of_these_weights.any():
            record.differences.append(log_ratios[of_these_weights].detach().cpu())
        if self._config.entropy_bonus:
            loss = loss - self._config.entropy_bonus * self.workers * self._entropies[mask].sum() / inputs["num_items_in_batch"]
        return self._with_critic(self.critic, loss, inputs, record, warming_up) if self.critic else loss

    @torch.no_grad()
    def scores(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of completion tokens, both (rows, tokens); values have no columns without a critic."""
        tensors = self._tensors(rows)
        logprobs = self._logprobs_of(self.model, tensors, tensors["completion_mask"])
        return logprobs, self.critic.values(logprobs.size(1), self._joined) if self.critic else logprobs[:, :0]

    def _with_critic(self, critic: Critic, loss: Tensor, inputs: MicroBatch, record: PassRecord, warming_up: bool) -> Tensor:
        mask = inputs["tool_mask"].bool()
        values = critic.values(mask.size(1), self._joined, alone=warming_up)
        errors = value_loss(values, inputs["old_values"], inputs["returns"], mask, self._config.critic.clip) / inputs["num_items_in_batch"]
        record.value_errors.append(errors.item())
        errors = errors * self.workers  # accelerate averages over workers
        if not warming_up:
            return loss + errors
        return errors if self.workers == 1 else errors + 0 * loss  # with several workers each weight needs a gradient

    def _tensors(self, rows: Sequence[Row]) -> dict[str, Any]:
        tensors = {name: value.to(self.accelerator.device) for name, value in collate_rows(rows, self._tokenizer.pad_token_id).items()}
        return {**tensors, "images": [row.images for row in rows]}

    def _pixels(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Image inputs of a pass, decoded only when needed, since pixels are far larger than files."""
        images = [image for own in inputs["images"] for image in own]
        if self.vision is None or not images:
            return {}
        pixels = {name: value.to(self.accelerator.device) for name, value in self.vision.inputs(images).items()}
        return {**pixels, "num_images": [len(own) for own in inputs["images"]]}

    def _loss_scale(self, part: Sequence[Row], attempts: int, tokens: int) -> float:
        """Factor that turns TRL's mean over passes into a mean over the step."""
        passes = self._config.most_passes * self.workers
        if self.loss_type in ROW_MEANS:
            return len(part) * passes / attempts
        if self.loss_type == "bnpo":
            return sum(row.action_tokens for row in part) * passes / tokens
        return 1.0

    @torch.no_grad()
    def _reference_logprobs(self, inputs: dict[str, Any]) -> Tensor:
        bare = self.accelerator.unwrap_model(self.model).disable_adapter() if self.ref_model is None else nullcontext()
        with bare:
            return self._logprobs_of(self.ref_model or self.model, inputs, inputs["tool_mask"])

    def _logprobs_of(self, model: Any, inputs: Mapping[str, Any], wanted: Tensor) -> Tensor:
        self._wanted = wanted
        return self._scores(model, *_sequences(inputs), **self._pixels(inputs))[0]

    def _scores(self, model: Any, ids: Tensor, attention: Tensor, count: int, **kwargs: Any) -> Any:
        """What TRL needs for the last `count` tokens: log-probabilities, entropies, and the router's auxiliary loss."""
        pictured = kwargs.get("pixel_values") is not None
        balances = bool(kwargs.get("compute_aux_loss"))
        self._joined = self._join(ids, attention.bool(), count, balances) if self.joins and not pictured else None
        if self._wanted is None or pictured or not (self._joined or self._chooses):
            return super()._get_per_token_logps_and_entropies(model, ids, attention, count, **kwargs)
        chosen = torch.zeros_like(ids, dtype=torch.bool)
        chosen[:, -count:] = self._wanted.bool()
        with self.accelerator.autocast():
            *scores, balance = self._scores_of(model, ids, chosen, attention, balances)
        return *(None if each is None else each.new_zeros(ids.shape).masked_scatter(chosen, each)[:, -count:] for each in scores), balance

    def _join(self, ids: Tensor, mask: Tensor, count: int, balances: bool) -> JoinedRows:
        if not self.shares or balances:
            return JoinedRows.of(mask)
        return JoinedRows.with_shared_prompts(mask, ids, ids.size(1) - count)

    def _scores_of(
        self, model: Any, ids: Tensor, chosen: Tensor, attention: Tensor, balances: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
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


def remove_dropout(model: PreTrainedModel) -> None:
    """Set all dropout of `model` to 0, in modules and configurations, because engines sample without it."""
    configs = {id(module.config): module.config for module in model.modules() if isinstance(module, PreTrainedModel)}
    for holder in (*model.modules(), *configs.values()):
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0
        for name, value in vars(holder).items():
            if "drop" in name and isinstance(value, float):
                setattr(holder, name, 0.0)


def count_from_first(model: PreTrainedModel) -> None:
    """Count positions from a row's first token instead of its padding, for learned positions (GPT-2). Vision models need no change."""
    backbone = model.base_model
    if model.config.get_text_config() is model.config and "position_ids" in inspect.signature(backbone.forward).parameters:
        backbone.register_forward_pre_hook(_with_positions, with_kwargs=True)


def _with_positions(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    attention = named.get("attention_mask")
    if attention is None or named.get("position_ids") is not None:
        return None
    return given, {**named, "position_ids": (attention.long().cumsum(dim=1) - 1).clamp(min=0)}


def _sequences(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int]:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    return ids, mask, inputs["completion_ids"].size(1)


def _computed(inputs: Mapping[str, Tensor], joined: JoinedRows | None) -> tuple[int, list[tuple[int, int]]]:
    """Tokens of a pass, and (tokens before it, own tokens) of each sequence that passed through the model."""
    lengths = (inputs["prompt_mask"].sum(dim=1) + inputs["completion_mask"].sum(dim=1)).tolist()
    return sum(lengths), joined.spans if joined else [(0, length) for length in lengths]


def _arguments(model: PreTrainedModel, config: ReinforceConfig, output: Path, seed: int, sees: bool) -> GRPOConfig:
    """Batch size and generations only satisfy TRL's constructor. Passes without images leave the vision weights without gradients."""
    return GRPOConfig(
        **{**trainer_arguments(model, config, output, seed, config.steps * config.epochs), "ddp_find_unused_parameters": sees},
        per_device_train_batch_size=2,
        num_generations=2,
        gradient_accumulation_steps=config.most_passes,
        num_iterations=config.epochs,
        loss_type=config.loss_type,
        importance_sampling_level=config.importance_sampling_level,
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        beta=config.beta,
        use_bias_correction_kl=True,  # TRL's default from 1.16 on; changes the gradient, see docs/learning.md
        temperature=config.temperature,
        max_completion_length=config.max_completion_tokens,
    )


def _no_reward(prompts: Sequence[str], **kwargs: Any) -> list[float | None]:
    raise AssertionError("rewards come with the trajectories")


VALUE_HEAD = "value_head"
"""Attribute of the model that holds the value head."""


class ValueHead(nn.Module):
    """Two layers from a hidden state to its value, which is initially 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Values (...) of hidden states (..., width), in float32."""
        features = torch.tanh(self.hidden(states)).float()
        return nn.functional.linear(features, self.value.weight.float(), self.value.bias.float()).squeeze(-1)


class Critic:
    """A value head on a model, and the hidden states of the last forward pass until `values` reads them.

    With adapters it is trained in full; with FSDP it is a unit of its own, since it is called after the model's forward pass.
    """

    def __init__(self, model: PreTrainedModel, seed: int, trunk_gradient: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            setattr(model, VALUE_HEAD, ValueHead(model.config.get_text_config().hidden_size))
        model._no_split_modules = {*(model._no_split_modules or ()), ValueHead.__name__}  # FSDP gathers it as one unit
        model.base_model.register_forward_hook(self._keep)
        self._model = model
        self._trunk_gradient = trunk_gradient
        self._states: Tensor | None = None

    @property
    def head(self) -> nn.Module:
        """The value head, possibly wrapped by peft."""
        return getattr(self._model, VALUE_HEAD)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.head.parameters() if parameter.requires_grad]

    def values(self, tokens: int, joined: JoinedRows | None = None, alone: bool = False) -> Tensor:
        """Values (rows, tokens) of the states in which the last `tokens` tokens were generated; may be read once per forward pass.

        Args:
            joined: how that pass joined its rows, or None.
            alone: block the gradient into the states regardless of `trunk_gradient`.
        """
        assert self._states is not None, "no forward pass since the values were last read"
        states, self._states = self._states, None
        states = states.to(next(self.head.parameters()).dtype)
        states = states.detach() if alone or not states.requires_grad else scaled_gradient(states, self._trunk_gradient)
        if joined is not None:
            return joined.part(self.head(states))[:, -tokens - 1 : -1]
        return self.head(states[:, -tokens - 1 : -1])

    def _keep(self, module: nn.Module, arguments: object, output: object) -> None:
        states: Tensor = output.last_hidden_state  # type: ignore[attr-defined]
        self._states = states if self._trunk_gradient else states.detach()


def scaled_gradient(tensor: Tensor, scale: float) -> Tensor:
    """Identity whose gradient is multiplied by `scale`."""
    held = tensor.detach()
    return held + scale * (tensor - held)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """½ Σ max((V - R)², (V_old + clip(V - V_old, ± `clip`) - R)²) over masked tokens; tensors (rows, tokens).

    Clipped as in PPO's own code (Huang et al. 2022, «The 37 implementation details of PPO», detail 9).
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    errors = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
    return 0.5 * torch.where(mask, errors, 0).sum()
