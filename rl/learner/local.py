"""The learner in this process: TRL's loss, accelerate's distribution, precision and checkpoints, one optimizer step after another.

Where there are several workers, each is one of these (`rl/learner/group.py`). All have the rows of the whole step, so that its means are
those of one process; each makes micro-batches of its own share, and accelerate takes the mean of the gradients.

How each version of the weights comes to the engines, and onto the disk. All of them are in the engines' dtype.

    files       every version is written into a folder of its own, and the engines load that
    a transfer  the engines are sent it, and no file is written, but for two reasons:
                an engine can have it in no other way (it is starting, or the transfer broke off): the folder is written at once;
                a checkpoint stands behind it: the folder is written beside the training, and is what engines that start later load
    adapters    where engines serve them, a version is the folder of its adapters alone, of which engines are sent the files

A folder bears its name when it is whole, so that whoever kills this process leaves no half of one.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.engines.weight_sync import WeightSyncHandle
from rl.learner.base import Encoding, EngineWeights, PassRecord, Scores, Update
from rl.learner.batches import Row, share_groups, share_rows, split_rows
from rl.learner.config import ReinforceConfig
from rl.learner.losses import NAME, MicroBatch, PolicyLoss
from rl.learner.metrics import device_name, flops_of, peak_memory_gib, ratio_figures
from rl.learner.optimizers import optimizer_factory
from rl.learner.trainers import CHECKPOINTS, gather_adapters, gather_policy, keep_float32, offloading, write_policy
from rl.policies.policy import as_saved, copied, in_dtype, load_policy, save_policy
from rl.policies.transfer import save_adapters
from rl.policies.vision import Vision, load_vision
from warehouse.drafts import DRAFT, drafted, is_draft, remove_folder

if TYPE_CHECKING:
    from rl.engines.weight_sender import WeightSender

STATE_FILE, WEIGHTS_FILE = "flywheel_state.json", "model.safetensors"
CHECKPOINTS_KEPT = 2
"""A kill while one is written leaves the one before."""


class LocalLearner:
    """See `rl.learner.base.Learner`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: ReinforceConfig,
        output: Path,
        seed: int,
        engines: EngineWeights | None = None,
        weight_sync: WeightSyncHandle | None = None,
        vision: Vision | None = None,
    ) -> None:
        """Train `model` by `config`; checkpoints and published weights go below `output`.

        Args:
            weight_sync: how the engines are sent weights; None: they load folders.
            vision: how the policy takes images, where it takes any.
        """
        self._tokenizer = tokenizer
        self.loss = loss = PolicyLoss(model, tokenizer, config, output, seed, vision)
        self._config = config
        self._engines = engines or EngineWeights()
        self._checkpoints = output / CHECKPOINTS
        self._sender = None if weight_sync is None else _sender(weight_sync)
        self._publisher = WeightPublisher(output, self._tokenizer, self._engines.dtype, self._sender)
        self._offloading = offloading(config, loss.model)
        self._warming_up = False
        self.accelerator = loss.accelerator
        self.encoding = Encoding(self._tokenizer.pad_token_id, None if vision is None else vision.placeholder_id)
        keep_float32(loss, config)
        self._model, self._optimizer = self.accelerator.prepare(loss.model, self._make_optimizer())
        if config.learner.sharded:
            loss.model = self._model
        self._model.train()
        self._scheduler = loss.create_scheduler(config.steps * config.epochs, self._optimizer)
        self.accelerator.register_for_checkpointing(self._scheduler)
        self.accelerator.register_save_state_pre_hook(self._save_weights)
        self.accelerator.register_load_state_pre_hook(self._load_weights)

    # What the loop asks

    def score(self, rows: Sequence[Row]) -> Scores:
        """See `Learner.score`. Each worker scores a share, in as many passes as the others: shards are gathered by all at once."""
        if not rows:
            return Scores([], [])
        passes = min(self._passes_of(rows), math.ceil(len(rows) / self.loss.workers))
        numbers = {id(row): number for number, row in enumerate(rows)}
        scored: list[tuple[int, list[float], list[float]]] = []
        for part in (part or rows[:1] for part in self._own(self._split(rows, passes * self.loss.workers))):
            logprobs, values = self.loss.scores(part)
            for row, *both in zip(part, logprobs.tolist(), values.tolist(), strict=True):
                scored.append((numbers[id(row)], *(each[: len(row.completion_ids)] for each in both)))
        self._give_back_cache()
        found = {number: (logprobs, values) for number, logprobs, values in gather_object(scored)}
        return Scores(*([found[number][each] for number in range(len(rows))] for each in (0, 1)))

    def update(self, rows: Sequence[Row], step: int) -> Update:
        """See `Learner.update`."""
        self._warming_up = self._config.has_critic and step <= self._config.critic.warmup_steps
        batches, record = self.micro_batches(rows), PassRecord()
        loss = torch.zeros((), device=self.accelerator.device)
        for epoch in range(self._config.epochs):
            for number, inputs in enumerate(batches, start=1):
                with self._gradients_exchanged(number == len(batches)), self._offloading:
                    passed = self.loss.loss(self._model, inputs, record, step - 1 if epoch == 0 else None, self._warming_up)
                    self.accelerator.backward(passed)
                loss += passed.detach()
            grad_norm = self.accelerator.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm)
            rate = self._scheduler.get_last_lr()[0]
            self._optimizer.step()
            self._scheduler.step()
            self._optimizer.zero_grad()
        means = {"loss": loss.item() / self._config.epochs, "grad_norm": float(grad_norm), "learning_rate": float(rate)}
        return self._measured(record, means)

    def publish(self, version: int, record: bool = False) -> Path | None:
        """See `Learner.publish`. All workers gather, the main one writes or sends."""
        folder = self._publish(version, record)
        self._give_back_cache()
        return folder

    def _publish(self, version: int, record: bool) -> Path | None:
        main = self.accelerator.is_main_process
        if self._config.lora is not None and self._engines.adapters:
            config, weights = gather_adapters(self.loss)
            return self._publisher.publish_adapters(config, weights, version) if main else None
        policy, weights = gather_policy(self.loss, self._config.lora, without=(NAME,))
        self._give_back_cache()
        return self._publisher.publish(policy, weights, version, record) if main else None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """See `Learner.save`. The folder bears its name when it is whole."""
        folder, main = self._checkpoints / f"checkpoint-{step}", self.accelerator.is_main_process
        with drafted(folder) if main else nullcontext(folder.with_name(folder.name + DRAFT)) as draft:
            if main:
                draft.mkdir()
            self.accelerator.wait_for_everyone()
            self.accelerator.save_state(str(draft))
            self.accelerator.wait_for_everyone()
            if main:
                (draft / STATE_FILE).write_text(json.dumps(state))
        for old in checkpoints(self._checkpoints)[:-CHECKPOINTS_KEPT] if main else ():
            remove_folder(old)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """See `Learner.load`. What a kill left of a checkpoint is deleted."""
        if self.accelerator.is_main_process:
            for draft in self._checkpoints.glob(f"*{DRAFT}"):
                shutil.rmtree(draft)
        found = checkpoints(self._checkpoints)
        if not found:
            return None
        self.accelerator.load_state(str(found[-1]))
        return _step(found[-1]), json.loads((found[-1] / STATE_FILE).read_text())

    def write(self, folder: Path) -> None:
        """See `Learner.write`."""
        write_policy(self.loss, self._tokenizer, folder, self._config, without=(NAME,))

    def close(self) -> None:
        """See `Learner.close`."""
        try:
            self._publisher.close()
        finally:
            if self._sender is not None:
                self._sender.close()

    # Micro-batches

    def micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """The micro-batches of a step's rows, this worker's share of them.

        Rows without an advantage have no gradient unless the loss holds another term: they are left out here, but not of the means.
        """
        critic = self.loss.critic is not None
        useful = rows if self.loss.beta or self._config.entropy_bonus or critic else [row for row in rows if row.teaches]
        tokens, workers = sum(row.action_tokens for row in rows), self.loss.workers
        parts = self._split(useful, self._passes_of(useful) * workers)
        padding = [_without_loss(row) for row in useful[:1]]
        for start in range(0, len(parts), workers):
            together = parts[start : start + workers]
            most = max(map(len, together))  # workers exchange figures in each pass, and these must be of equal number
            parts[start : start + workers] = [[*part, *padding * (most - len(part))] for part in together]
        return [self.loss.micro_batch(part, len(rows), tokens) for part in self._own(parts) if part]

    def _passes_of(self, rows: Sequence[Row]) -> int:
        """The passes of each worker that the rows are shared out to: more than a step's where its filters had more groups sampled."""
        return min(max(self._config.passes, self._config.passes_of(len(rows))), self._config.most_passes)

    def _split(self, rows: Sequence[Row], parts: int) -> list[list[Row]]:
        """Rows that are joined fill passes by their tokens; rows side by side are to be of similar length."""
        return share_groups(rows, parts) if self.loss.shares else share_rows(rows, parts) if self.loss.joins else split_rows(rows, parts)

    def _own(self, parts: Sequence[list[Row]]) -> list[list[Row]]:
        """This worker's share of the parts of a step; what the workers have in hand at a time is of similar length."""
        return list(parts[self.accelerator.process_index :: self.loss.workers])

    # An optimizer step

    def _gradients_exchanged(self, last: bool) -> Any:
        """Within it workers exchange gradients: behind the last pass of an update alone, where weights are not sharded."""
        return nullcontext() if last or self._config.learner.sharded else self.accelerator.no_sync(self._model)

    def _make_optimizer(self) -> Any:
        """The configured optimizer, in which the critic's head has a rate of its own and no decay."""
        self.loss.optimizer_cls_and_kwargs = optimizer_factory(self._config)
        optimizer = self.loss.create_optimizer()
        if self.loss.critic is not None:
            own = self.loss.critic.parameters
            ids = {id(parameter) for parameter in own}
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
            optimizer.add_param_group({**optimizer.defaults, "params": own, "lr": self._config.critic.learning_rate, "weight_decay": 0.0})
            optimizer.register_step_pre_hook(self._hold_policy)
        return optimizer

    def _hold_policy(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before a step of the optimizer: while the critic warms up, the policy has no gradient at all."""
        if not self._warming_up:
            return
        for group in optimizer.param_groups[:-1]:
            for parameter in group["params"]:
                parameter.grad = None
                if self._config.learner.sharded and parameter not in optimizer.state:  # checkpoints of shards must have one for each
                    optimizer.state[parameter] = first_state(parameter, bool(group["fused"]))

    def _measured(self, record: PassRecord, means: Mapping[str, float]) -> Update:
        """The figures of an update, of all workers together."""
        measured = (record.log_ratios, record.differences, record.value_errors, record.tokens, means["loss"], peak_memory_gib())
        log_ratios, differences, value_errors, tokens, losses, memory = zip(*gather_object([measured]), strict=True)
        figures = {**means, "loss": sum(losses) / len(losses), "learner_memory_gib": max(memory)}
        for name, values in self.loss._metrics["train"].items():
            valid = [value for value in values if not math.isnan(value)]
            figures |= {name: sum(valid) / len(valid)} if valid else {}
        self.loss._metrics["train"].clear()
        if any(log_ratios):
            figures |= ratio_figures(torch.cat([each for part in log_ratios for each in part]))
        if any(value_errors):
            figures["value_loss"] = sum(map(sum, value_errors)) / self._config.epochs
        bare = self.accelerator.unwrap_model(self.loss.model)
        bare = bare if isinstance(bare, PreTrainedModel) else bare.get_base_model()
        together = record.tokens.together(tokens)
        device = device_name() if self.accelerator.device.type == "cuda" else ""
        own = torch.cat([torch.zeros(0), *(each for part in differences for each in part)])
        return Update(figures, together, flops_of(bare, together.mean_row), device, own)

    def _give_back_cache(self) -> None:
        """Leave engines on this card what activations, and copies of weights in the engines' dtype, have left behind."""
        if self._engines.in_turns and torch.cuda.is_available():
            torch.cuda.empty_cache()

    # Checkpoints: whole weights by the bare model's names, so that another number of workers can go on; shards are accelerate's

    def _kept(self) -> dict[str, Tensor]:
        """The weights that stand in checkpoints: those that are trained."""
        bare = self.accelerator.unwrap_model(self.loss.model)
        return {name: weight for name, weight in bare.named_parameters() if weight.requires_grad or self._config.lora is None}

    def _save_weights(self, models: list[Any], weights: list[Any], folder: str) -> None:
        if not weights:
            return
        weights.clear()
        if self.accelerator.is_main_process:
            save_file({name: weight.detach().contiguous() for name, weight in self._kept().items()}, Path(folder, WEIGHTS_FILE))

    def _load_weights(self, models: list[Any], folder: str) -> None:
        if not models:
            return
        models.clear()
        with safe_open(Path(folder, WEIGHTS_FILE), "pt") as stored, torch.no_grad():
            for name, weight in self._kept().items():
                weight.copy_(stored.get_tensor(name))


def load_learner(
    policy: Path, output: Path, config: ReinforceConfig, seed: int, engines: EngineWeights, weight_sync: WeightSyncHandle | None
) -> LocalLearner:
    """The learner of the policy in folder `policy`, in this process."""
    return LocalLearner(*load_policy(policy), config, output, seed, engines, weight_sync, load_vision(policy))


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, the newest last."""
    return sorted((path for path in folder.glob("checkpoint-*") if not is_draft(path)), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[-1])


def _sender(weight_sync: WeightSyncHandle) -> WeightSender:
    from rl.engines.weight_sender import WeightSender  # vLLM: not where engines load files alone

    return WeightSender(weight_sync)


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


if TYPE_CHECKING:
    from rl.engines.weight_sender import WeightSender

WEIGHTS = "weights"
"""The folder of the versions, below that of the policy which is trained."""
WEIGHTS_KEPT = 2
"""Versions that stay on disk, so that an engine that starts again finds the one it is told to load."""


class WeightPublisher:
    """Publishes the versions of one training run, one after the other."""

    def __init__(self, output: Path, tokenizer: PreTrainedTokenizerBase, dtype: str, sender: WeightSender | None) -> None:
        """Write folders below `output`, in the engines' `dtype`; `sender` sends versions, where they are sent."""
        self._folder = output / WEIGHTS
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._sender = sender
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._record: tuple[int, Future[None]] | None = None
        """The version that is being written beside the training."""
        self._first = True

    def publish(self, policy: PreTrainedModel, weights: Mapping[str, Tensor], version: int, record: bool) -> Path | None:
        """Bring `weights` of `policy` to the engines as `version`; with `record` its folder is written also where no engine needs it.

        Returns the folder that the engines must load; None where they have been sent the weights.

        Raises:
            OSError: a folder cannot be written, this one or the last that was written beside the training.
        """
        self._begin()
        self._announce()
        given = in_dtype(weights, self._dtype)
        if self._sender is None or not self._sender.send(as_saved(policy, given), self._place(version), version):
            self._finish_record()
            self._write(policy, given, version)
            self._forget()
            return self._place(version)
        if record:
            self._finish_record()
            own = copied(given)  # the next step changes these
            self._record = version, self._writer.submit(self._write, policy, own, version)
        return None

    def publish_adapters(self, config: Any, weights: Mapping[str, Tensor], version: int) -> Path:
        """The folder of the adapters of the policy that training began with, with peft's configuration of them, as `version`.

        Raises:
            OSError: their folder cannot be written.
        """
        self._begin()
        given = in_dtype(weights, self._dtype)
        with drafted(self._place(version)) as draft:
            save_adapters(config, given, draft)
        self._forget()
        return self._place(version)

    def close(self) -> None:
        """Wait for what is being written. Raises OSError where it could not be."""
        try:
            self._finish_record()
        finally:
            self._writer.shutdown()

    def _begin(self) -> None:
        """Delete what an earlier process left, for it is of later versions, or of no whole one."""
        if self._first:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._first = False

    def _write(self, policy: PreTrainedModel, weights: Mapping[str, Tensor], version: int) -> None:
        with drafted(self._place(version)) as draft:
            save_policy(policy, self._tokenizer, draft, weights, self._dtype)

    def _finish_record(self) -> None:
        """Wait for what is being written, and announce it."""
        if self._record is not None:
            wait([self._record[1]])
            self._announce()

    def _announce(self) -> None:
        """Have engines that start from now on load the last record, if it has been written by now."""
        if self._record is None or not self._record[1].done():
            return
        (version, written), self._record = self._record, None
        written.result()
        if self._sender is not None:
            self._sender.record(self._place(version), version)
        self._forget()

    def _forget(self) -> None:
        """Delete the folders of older versions."""
        whole = sorted(folder for folder in self._folder.iterdir() if not is_draft(folder))
        for old in whole[:-WEIGHTS_KEPT]:
            remove_folder(old)

    def _place(self, version: int) -> Path:
        return self._folder / f"{version:06d}"
