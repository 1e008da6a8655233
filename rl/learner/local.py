"""The learner in this process: TRL's loss, accelerate's distribution, precision and checkpoints, and publishing of weights to engines.

With several workers, each is a `LocalLearner` (`rl/learner/group.py`). All get the step's rows, so that means are over the whole step; each
makes micro-batches of its share, and accelerate averages gradients. Weights are published in the engines' dtype:

    files       write each version to a folder that engines load
    transfer    send each version; write its folder only if an engine needs it (it is starting, or the transfer failed), or after a
                checkpoint in the background, for engines that start later
    adapters    write a folder with the adapters only, for engines that serve adapters
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
from rl.learner.batches import Row, parts_of_means, share_groups, share_rows, split_rows
from rl.learner.config import ReinforceConfig
from rl.learner.losses import VALUE_HEAD, MicroBatch, PolicyLoss
from rl.learner.metrics import device_name, flops_of, peak_memory_gib, ratio_metrics
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
"""A kill during a save leaves the previous checkpoint."""


class LocalLearner:
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
        """Train `model` with `config`; checkpoints and published weights go below `output`.

        Args:
            weight_sync: sends weights to engines; None: engines load folders.
            vision: image processing, if the policy takes images.
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

    # The interface `Learner`

    def score(self, rows: Sequence[Row]) -> Scores:
        """Score a share of the rows per worker, in equally many passes, since gathering sharded weights needs all workers."""
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
        """All workers gather weights; the main one writes or sends them."""
        folder = self._publish(version, record)
        self._give_back_cache()
        return folder

    def _publish(self, version: int, record: bool) -> Path | None:
        main = self.accelerator.is_main_process
        if self._config.lora is not None and self._engines.adapters:
            config, weights = gather_adapters(self.loss)
            return self._publisher.publish_adapters(config, weights, version) if main else None
        policy, weights = gather_policy(self.loss, self._config.lora, without=(VALUE_HEAD,))
        self._give_back_cache()
        return self._publisher.publish(policy, weights, version, record) if main else None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Written to a draft folder that is renamed when complete."""
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
        """Also deletes incomplete checkpoints."""
        if self.accelerator.is_main_process:
            for draft in self._checkpoints.glob(f"*{DRAFT}"):
                shutil.rmtree(draft)
        found = checkpoints(self._checkpoints)
        if not found:
            return None
        self.accelerator.load_state(str(found[-1]))
        return _step(found[-1]), json.loads((found[-1] / STATE_FILE).read_text())

    def write(self, folder: Path) -> None:
        write_policy(self.loss, self._tokenizer, folder, self._config, without=(VALUE_HEAD,))

    def close(self) -> None:
        try:
            self._publisher.close()
        finally:
            if self._sender is not None:
                self._sender.close()

    # Micro-batches

    def micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """This worker's micro-batches of a step's rows.

        Rows without advantage are skipped unless the loss has another term; they still count in its means, which are over trajectories: one
        of several contexts counts once.
        """
        critic, attempts = self.loss.critic is not None, len({row.trajectory_id for row in rows})
        if self._config.loss_type == "grpo" and attempts < len(rows):
            rows = parts_of_means(rows)
        useful = rows if self.loss.beta or self._config.entropy_bonus or critic else [row for row in rows if row.teaches]
        tokens, workers = sum(row.action_tokens for row in rows), self.loss.workers
        parts = self._split(useful, self._passes_of(useful) * workers)
        padding = [_without_loss(row) for row in useful[:1]]
        for start in range(0, len(parts), workers):
            together = parts[start : start + workers]
            most = max(map(len, together))  # workers exchange metrics in each pass, which needs equal numbers of rows
            parts[start : start + workers] = [[*part, *padding * (most - len(part))] for part in together]
        return [self.loss.micro_batch(part, attempts, tokens) for part in self._own(parts) if part]

    def _passes_of(self, rows: Sequence[Row]) -> int:
        """Passes per worker; more than a step's default if its filters sampled more groups."""
        return min(max(self._config.passes, self._config.passes_of(len(rows))), self._config.most_passes)

    def _split(self, rows: Sequence[Row], parts: int) -> list[list[Row]]:
        """Split rows into passes: by tokens if joined, by similar length if padded."""
        return share_groups(rows, parts) if self.loss.shares else share_rows(rows, parts) if self.loss.joins else split_rows(rows, parts)

    def _own(self, parts: Sequence[list[Row]]) -> list[list[Row]]:
        return list(parts[self.accelerator.process_index :: self.loss.workers])

    # An optimizer step

    def _gradients_exchanged(self, last: bool) -> Any:
        """Exchange gradients only after the last pass, unless weights are sharded."""
        return nullcontext() if last or self._config.learner.sharded else self.accelerator.no_sync(self._model)

    def _make_optimizer(self) -> Any:
        """The value head gets its own learning rate and no weight decay."""
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
        """Optimizer pre-step hook: remove the policy's gradients while the critic warms up."""
        if not self._warming_up:
            return
        for group in optimizer.param_groups[:-1]:
            for parameter in group["params"]:
                parameter.grad = None
                if self._config.learner.sharded and parameter not in optimizer.state:  # a sharded checkpoint needs a state for each
                    optimizer.state[parameter] = first_state(parameter, bool(group["fused"]))

    def _measured(self, record: PassRecord, means: Mapping[str, float]) -> Update:
        measured = (record.log_ratios, record.differences, record.value_errors, record.tokens, means["loss"], peak_memory_gib())
        log_ratios, differences, value_errors, tokens, losses, memory = zip(*gather_object([measured]), strict=True)
        metrics = {**means, "loss": sum(losses) / len(losses), "learner_memory_gib": max(memory)}
        for name, values in self.loss._metrics["train"].items():
            valid = [value for value in values if not math.isnan(value)]
            metrics |= {name: sum(valid) / len(valid)} if valid else {}
        self.loss._metrics["train"].clear()
        if any(log_ratios):
            metrics |= ratio_metrics(torch.cat([each for part in log_ratios for each in part]))
        if any(value_errors):
            metrics["value_loss"] = sum(map(sum, value_errors)) / self._config.epochs
        bare = self.accelerator.unwrap_model(self.loss.model)
        bare = bare if isinstance(bare, PreTrainedModel) else bare.get_base_model()
        together = record.tokens.together(tokens)
        device = device_name() if self.accelerator.device.type == "cuda" else ""
        own = torch.cat([torch.zeros(0), *(each for part in differences for each in part)])
        return Update(metrics, together, flops_of(bare, together.mean_row), device, own)

    def _give_back_cache(self) -> None:
        """Free cached GPU memory for engines on the same GPU."""
        if self._engines.in_turns and torch.cuda.is_available():
            torch.cuda.empty_cache()

    # Checkpoints hold full weights by the bare model's names, so the number of workers may change on resume. accelerate saves shards.

    def _kept(self) -> dict[str, Tensor]:
        """Weights that checkpoints hold: all, or only the trained ones with adapters."""
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
    return LocalLearner(*load_policy(policy), config, output, seed, engines, weight_sync, load_vision(policy))


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in `folder`, newest last."""
    return sorted((path for path in folder.glob("checkpoint-*") if not is_draft(path)), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[-1])


def _sender(weight_sync: WeightSyncHandle) -> WeightSender:
    from rl.engines.weight_sender import WeightSender  # imports vLLM, which is not needed if engines load files

    return WeightSender(weight_sync)


def first_state(parameter: Tensor, fused: bool) -> dict[str, Tensor]:
    """AdamW's state before the first gradient (`_init_group` in torch/optim/adam.py)."""
    step = torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu")
    return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def _without_loss(row: Row) -> Row:
    """First tokens of the row without actions or advantages, which add 0 to any loss."""
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


WEIGHTS = "weights"
"""Folder of published versions, below that of the trained policy."""
WEIGHTS_KEPT = 2
"""Versions kept on disk, so that a restarted engine finds the one it must load."""


class WeightPublisher:
    """Publishes the weight versions of one run in order."""

    def __init__(self, output: Path, tokenizer: PreTrainedTokenizerBase, dtype: str, sender: WeightSender | None) -> None:
        """Write folders below `output` in `dtype`; send versions with `sender` if given."""
        self._folder = output / WEIGHTS
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._sender = sender
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._record: tuple[int, Future[None]] | None = None
        """Version that is being written in the background."""
        self._first = True

    def publish(self, policy: PreTrainedModel, weights: Mapping[str, Tensor], version: int, record: bool) -> Path | None:
        """Bring `weights` to the engines as `version`; with `record` write the folder even if no engine needs it.

        Returns the folder that engines must load, or None if the weights were sent.

        Raises:
            OSError: this folder, or the previous background one, cannot be written.
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
            own = copied(given)  # the next step changes the weights in place
            self._record = version, self._writer.submit(self._write, policy, own, version)
        return None

    def publish_adapters(self, config: Any, weights: Mapping[str, Tensor], version: int) -> Path:
        """Write the adapters of `version` with peft's configuration and return their folder. Raises OSError."""
        self._begin()
        given = in_dtype(weights, self._dtype)
        with drafted(self._place(version)) as draft:
            save_adapters(config, given, draft)
        self._forget()
        return self._place(version)

    def close(self) -> None:
        """Wait for background writes. Raises OSError."""
        try:
            self._finish_record()
        finally:
            self._writer.shutdown()

    def _begin(self) -> None:
        """Delete folders of an earlier process, before the first version."""
        if self._first:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._first = False

    def _write(self, policy: PreTrainedModel, weights: Mapping[str, Tensor], version: int) -> None:
        with drafted(self._place(version)) as draft:
            save_policy(policy, self._tokenizer, draft, weights, self._dtype)

    def _finish_record(self) -> None:
        if self._record is not None:
            wait([self._record[1]])
            self._announce()

    def _announce(self) -> None:
        """Let engines that start later load the background version, once it is written."""
        if self._record is None or not self._record[1].done():
            return
        (version, written), self._record = self._record, None
        written.result()
        if self._sender is not None:
            self._sender.record(self._place(version), version)
        self._forget()

    def _forget(self) -> None:
        whole = sorted(folder for folder in self._folder.iterdir() if not is_draft(folder))
        for old in whole[:-WEIGHTS_KEPT]:
            remove_folder(old)

    def _place(self, version: int) -> Path:
        return self._folder / f"{version:06d}"
