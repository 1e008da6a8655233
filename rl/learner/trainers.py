"""Common parts of training stages: TRL's trainers and arguments, crash-safe checkpoints, metrics, LoRA, and writing of the policy.

Checkpoints hold weights, optimizer, schedule, random state and step, so a resumed stage ends with the same weights as an uninterrupted one.
Progress bars and telemetry are off; progress goes to `on_metric` and the configured trackers.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import huggingface_hub.constants
import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from rl.learner.config import LoraConfig, OptimizerConfig, computes_in_bfloat16
from rl.learner.metrics import finite_metrics
from rl.policies.policy import save_policy
from rl.policies.transfer import adapter_weights

# TRL imports vLLM for generation that is not used here, which takes half of a learner's start time.
with patch("trl.import_utils.is_vllm_available", return_value=False):
    from trl.trainer.grpo_config import GRPOConfig as GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer as GRPOTrainer
    from trl.trainer.sft_config import SFTConfig as SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer as SFTTrainer


huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL reports each created trainer by default
datasets.disable_progress_bars()

OnMetric = Callable[[int, dict[str, float]], bool | None]
"""Called with a step and its metrics; training ends if it returns True. A resumed run reports steps since the checkpoint again."""

CHECKPOINTS = "checkpoints"


def trainer_arguments(model: PreTrainedModel, config: OptimizerConfig, output: Path, seed: int, steps: int) -> dict[str, Any]:
    """Arguments common to `SFTConfig` and `GRPOConfig`, for `steps` optimizer steps; the stage adds saving and logging intervals."""
    return {
        "output_dir": str(output / CHECKPOINTS),
        "max_steps": steps,
        "seed": seed,
        "learning_rate": config.learning_rate,
        **_schedule(config, steps),
        "adam_beta1": config.beta1,
        "adam_beta2": config.beta2,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "bf16": computes_in_bfloat16(config, model.num_parameters()),
        **_distribution(config),
        "save_strategy": "steps",
        "save_total_limit": 2,  # a kill during a save leaves the previous checkpoint
        "report_to": list(config.trackers) or "none",
        "run_name": output.name,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
    }


def offloading(config: OptimizerConfig, model: Any) -> AbstractContextManager[Any]:
    """Keep activations of `model` in host memory within the block, if configured."""
    if not config.activation_offloading or not torch.cuda.is_available():
        return nullcontext()
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    return get_act_offloading_ctx_manager(model)


def run_trainer(trainer: Trainer, config: OptimizerConfig, on_metric: OnMetric) -> None:
    """Train from the last complete checkpoint, or from the start."""
    keep_float32(trainer, config)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(MetricsCallback(on_metric))
    if config.save_minutes is not None:
        trainer.add_callback(TimedSaves(config.save_minutes))
    with trainer.accelerator.main_process_first():  # the main process deletes incomplete checkpoints
        checkpoint = last_checkpoint(Path(str(trainer.args.output_dir)))
    if checkpoint is not None and _is_finished(trainer, checkpoint):
        _load_finished(trainer, checkpoint)  # the trainer would make another step
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def write_policy(
    trainer: Trainer, tokenizer: PreTrainedTokenizerBase, folder: Path, config: OptimizerConfig, without: tuple[str, ...] = ()
) -> None:
    """Write the policy that `trainer` has trained in `config.policy_dtype`; all workers must call it.

    Args:
        without: top-level modules that are not part of the policy.
    """
    policy, weights = gather_policy(trainer, config.lora, without)
    if trainer.accelerator.is_main_process:
        save_policy(policy, tokenizer, folder, weights, config.policy_dtype)
    trainer.accelerator.wait_for_everyone()


def gather_policy(trainer: Trainer, lora: LoraConfig | None, without: tuple[str, ...] = ()) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """The bare model, and on the main worker the weights of its policy, with shards gathered and adapters merged."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    turned = {name for name, layer in model.named_modules() if getattr(layer, "fan_in_fan_out", False)}
    weights = merge_adapters(trainer.accelerator.get_state_dict(trainer.model), lora, turned)
    policy = model.get_base_model() if lora is not None else model
    return policy, {name: weight for name, weight in weights.items() if name.split(".")[0] not in without}


def gather_adapters(trainer: Trainer) -> tuple[Any, dict[str, Tensor]]:
    """peft's configuration and the adapter weights by peft's file names; all workers must call it, and each gets all weights."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    found = adapter_weights(model)
    whole = {name: weight.full_tensor() if isinstance(weight, DTensor) else weight for name, weight in found.items()}
    return model.peft_config["default"], whole


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[-1])


def last_checkpoint(folder: Path) -> Path | None:
    """Newest complete checkpoint in `folder`, or None; deletes newer incomplete ones."""
    found = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
    for path in found:
        if _is_whole(path):
            return path
        shutil.rmtree(path)
    return None


class MetricsCallback(TrainerCallback):
    """Reports a trainer's metrics, and ends training if `on_metric` returns True."""

    def __init__(self, on_metric: OnMetric) -> None:
        self._on_metric = on_metric

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """All workers follow the main worker's answer."""
        if logs and "train_runtime" not in logs:  # skip the metrics of the whole run
            control.should_training_stop |= bool(broadcast_object_list([self._on_metric(state.global_step, finite_metrics(logs))])[0])


def keep_float32(trainer: Trainer, config: OptimizerConfig) -> None:
    """Reduce sharded bfloat16 gradients in float32 and keep outputs unrounded, unlike accelerate's default policy."""
    if config.learner.sharded and trainer.args.bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = policy


class Patience(EarlyStoppingCallback):
    """Early stopping on held-out loss, with a count that survives a resume."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.early_stopping_patience_counter = self._counted(state)

    def is_over(self, state: TrainerState) -> bool:
        return self._counted(state) >= self.early_stopping_patience

    def _counted(self, state: TrainerState) -> int:
        states: Any = state.stateful_callbacks or {}
        return int(states.get(type(self).__name__, self.state())["attributes"]["early_stopping_patience_counter"])


def _is_finished(trainer: Trainer, checkpoint: Path) -> bool:
    state = _state_of(checkpoint)
    waiting = [each for each in trainer.callback_handler.callbacks if isinstance(each, Patience)]
    return state.global_step >= trainer.args.max_steps or any(each.is_over(state) for each in waiting)


def _state_of(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def _load_finished(trainer: Trainer, checkpoint: Path) -> None:
    model: Any = trainer.model
    model.to(trainer.accelerator.device)  # shards move only during training, and NCCL needs GPU tensors
    trainer.state = _state_of(checkpoint)
    best = checkpoint.parent / Path(trainer.state.best_model_checkpoint or checkpoint).name
    trainer._load_from_checkpoint(str(best if best.is_dir() else checkpoint))


def last_metrics(trainer: Trainer) -> dict[str, float]:
    """Last logged metrics, without those of the whole run."""
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return finite_metrics(logs[-1]) if logs else {}


def _schedule(config: OptimizerConfig, steps: int) -> dict[str, Any]:
    warmup = min(config.warmup_steps, steps // 2)
    decay = min(round(config.decay_share * steps), steps - warmup)
    return {
        "lr_scheduler_type": "warmup_stable_decay",
        "warmup_steps": warmup,
        "lr_scheduler_kwargs": {"num_decay_steps": decay, "decay_type": "linear"},
    }


def _distribution(config: OptimizerConfig) -> dict[str, Any]:
    """Devices and sharding. Shards exchange gradients after each pass, because accumulation would keep full gradients on each GPU."""
    on_cpus = not config.learner.gpus or not torch.cuda.is_available()
    shared: dict[str, Any] = {"use_cpu": on_cpus, "ddp_find_unused_parameters": False}
    if not config.learner.sharded:
        return {**shared, "gradient_checkpointing": config.gradient_checkpointing}
    fsdp = {"version": 2, "activation_checkpointing": config.gradient_checkpointing}
    exchange = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return {**shared, "fsdp": True, "fsdp_config": fsdp, "accelerator_config": exchange, "gradient_checkpointing": False}


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint is complete; the trainer's state is written last."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return True


WRAPPER = "base_model.model."
"""peft's prefix of weight names."""


def adapter_arguments(lora: LoraConfig | None, seed: int, whole: str | None = None) -> dict[str, Any]:
    """TRL's arguments for adapters, empty without them. Seeds torch, because trainers initialize adapters before they seed.

    Args:
        whole: name of a module that is trained in full and checkpointed with the adapters.
    """
    if lora is None:
        return {}
    import peft

    torch.manual_seed(seed)
    layers = list(lora.layers) or "all-linear"
    kept: dict[str, Any] = {} if whole is None else {"modules_to_save": [whole], "exclude_modules": rf"(.*\.)?{re.escape(whole)}(\..*)?"}
    return {"peft_config": peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=layers, lora_dropout=0.0, **kept)}


def merge_adapters(weights: Mapping[str, Tensor], lora: LoraConfig | None, turned: Collection[str] = ()) -> dict[str, Tensor]:
    """W + alpha / rank · B A by the names of the bare model (arXiv 2106.09685, §4.1); weights are unchanged without adapters.

    W is (out, in), B (out, rank), A (rank, in); layers in `turned` store W as (in, out), as in GPT-2.
    """
    if lora is None:
        return dict(weights)
    merged = {}
    for name, weight in weights.items():
        if name.endswith(".base_layer.weight"):
            layer = name.removesuffix(".base_layer.weight")
            low, high = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            change = (high @ low).T if layer in turned else high @ low
            weight = weight + lora.alpha / lora.rank * change.to(weight.dtype)
        if ".lora_" not in name:
            merged[name.removeprefix(WRAPPER).replace(".base_layer.", ".")] = weight
    return merged


class TimedSaves(TrainerCallback):
    """Requests a checkpoint after the first step that ends `minutes` or more after the last one."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = 60 * minutes
        self._clock = clock
        self._last = clock()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._last = self._clock()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """All workers follow the main worker's clock, since they save together."""
        if broadcast_object_list([self._clock() - self._last >= self._seconds])[0]:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._last = self._clock()
