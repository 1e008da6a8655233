"""Next-token training on packed examples with TRL's `SFTTrainer`: cold-start SFT, and the common part of SFT and CPT.

TRL packs examples (best fit, decreasing) into rows of fixed length. If attention supports boundaries (`rl/learner/packing.py`), the rows of
a pass are joined into one. Otherwise position ids restart with each example, from which transformers builds a quadratic mask. For models
that attend across such boundaries (see `keeps_apart`), the sequences of a row are padded side by side and packed by similar length.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.data_utils import pack_dataset

from rl.learner.base import TrainResult
from rl.learner.metrics import tracked
from rl.learner.optimizers import optimizer_factory
from rl.learner.packing import borders, can_choose, chosen_scores, joins_rows, keeps_apart, row_positions, set_attention
from rl.learner.trainers import (
    OnMetric,
    Patience,
    SFTConfig,
    SFTTrainer,
    adapter_arguments,
    last_metrics,
    run_trainer,
    trainer_arguments,
    write_policy,
)
from rl.policies.policy import load_policy
from rl.ray_runtime import RayConfig
from rl.renderers.examples import IGNORED_LABEL, EncodedExample
from rl.supervised.config import SftConfig, SupervisedConfig
from warehouse.digests import seed_from
from warehouse.errors import RequestError


class PackedTrainer(SFTTrainer):
    """TRL's trainer, but on CPUs the head computes labelled tokens only; TRL also computes entropy and accuracy of every token."""

    def _loss_of_labels(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None) -> Tensor:
        labels = inputs.pop("labels")
        chosen = labels >= 0
        with self.accelerator.autocast():
            logprobs, _ = chosen_scores(model, inputs.pop("input_ids"), chosen, inputs.pop("attention_mask", None), **inputs)
        return -logprobs.sum() / (chosen[:, 1:].sum() if num_items_in_batch is None else num_items_in_batch)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Tensor | int | None = None
    ) -> Any:
        """Mean over the step's labels, times the number of workers, over which gradients are averaged."""
        bare: Any = self.model
        if can_choose(bare, self.accelerator.num_processes) and not return_outputs:
            return self._loss_of_labels(bare, dict(inputs), num_items_in_batch)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[no-untyped-call]


def train_on_examples(
    policy_path: Path,
    examples: Sequence[EncodedExample],
    output: Path,
    config: SupervisedConfig,
    seed: int,
    on_metric: OnMetric,
    masked: bool,
    ray: RayConfig | None = None,
) -> TrainResult:
    """Train the policy in `policy_path` on `examples` and write it to `output`, from the last checkpoint if there is one.

    Args:
        masked: whether the loss covers trained tokens only.
        ray: how to connect to Ray, if the learner has workers.

    Raises:
        RequestError: no example is left, or the workers' passes do not divide `rows_per_step`.
    """
    passes_of(config)  # fail before anything starts
    if not config.learner.on_ray:
        return _train(policy_path, examples, output, config, seed, on_metric, masked)
    from rl.learner.group import Starter, learn_on_workers  # imports Ray, which a single process does not need

    paths = (policy_path.resolve(), output.resolve())

    def work(starter: Starter) -> TrainResult:
        return _train(paths[0], examples, paths[1], config, seed, starter.function("on_metric"), masked)

    return learn_on_workers(config.learner, ray, work, {"on_metric": on_metric})


def _train(
    policy_path: Path,
    examples: Sequence[EncodedExample],
    output: Path,
    config: SupervisedConfig,
    seed: int,
    on_metric: OnMetric,
    masked: bool,
) -> TrainResult:
    model, tokenizer = load_policy(policy_path)
    kept = [example for example in examples if 0 < len(example.token_ids) <= config.max_example_tokens]
    trained, held_out = split_examples(kept, config.held_out_share)
    with tracked(config.trackers, output):
        trainer = packed_trainer(model, tokenizer, trained, output, config, seed, masked, held_out)
        started = time.monotonic()
        run_trainer(trainer, config, on_metric)
        seconds = time.monotonic() - started
    write_policy(trainer, tokenizer, output, config)
    metrics = _data_metrics(trained, len(examples) - len(held_out), trainer.train_dataset, config.row_tokens, masked)
    if held_out:
        metrics |= {"held_out": len(held_out), "held_out_loss": trainer.state.best_metric}
    steps = min(trainer.args.max_steps, trainer.state.global_step)
    return TrainResult(output, {**metrics, "steps": steps, "seconds": seconds, "loss": last_metrics(trainer).get("loss")})


def packed_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    trained: Sequence[EncodedExample],
    output: Path,
    config: SupervisedConfig,
    seed: int,
    masked: bool,
    held_out: Sequence[EncodedExample] = (),
) -> PackedTrainer:
    """Trainer of `model` on packed examples in this process, with checkpoints below `output`. Raises RequestError without examples."""
    set_attention(model, config)
    apart = not keeps_apart(model)
    if apart:  # padding is bounded within a row, but not across rows of a pass
        config = config.model_copy(update={"rows_per_pass": 1})
    rows = _rows(trained, config, masked, apart)
    return PackedTrainer(
        model=model,
        args=_arguments(model, config, output, seed, optimizer_steps(len(rows), config), bool(held_out)),
        callbacks=[Patience(config.patience)] if held_out else None,
        train_dataset=rows,
        eval_dataset=_rows(held_out, config, masked, apart) if held_out else None,
        data_collator=PackingCollator(_pad_token_id(tokenizer), joins_rows(model), apart),
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=optimizer_factory(config),
        **adapter_arguments(config.lora, seed),
    )


def split_examples(examples: Sequence[EncodedExample], share: float) -> tuple[list[EncodedExample], list[EncodedExample]]:
    """Split into training and held-out examples, the latter about `share` of all; equal token ids are always in the same part."""
    held_out = {example.token_ids for example in examples if seed_from("held out", example.token_ids) < share * 2**31}
    trained = [example for example in examples if example.token_ids not in held_out]
    return trained, [example for example in examples if example.token_ids in held_out]


def optimizer_steps(rows: int, config: SupervisedConfig) -> int:
    """Steps for `rows` packed rows: all epochs, each rounded up to full steps, limited by `max_tokens`; at least one."""
    steps = config.steps_of_epochs(math.ceil(rows / config.rows_per_step))
    if config.max_tokens is not None:
        steps = min(steps, config.max_tokens // (config.rows_per_step * config.row_tokens))
    return max(steps, 1)


def passes_of(config: SupervisedConfig) -> int:
    """Passes per worker and step. Raises RequestError if the workers' passes do not divide `rows_per_step`."""
    at_once = config.rows_per_pass * config.learner.workers
    if config.rows_per_step % at_once:
        workers = f" times learner.workers = {config.learner.workers}" if config.learner.workers > 1 else ""
        raise RequestError(f"rows_per_pass = {config.rows_per_pass}{workers} does not divide rows_per_step = {config.rows_per_step}.")
    return config.rows_per_step // at_once


def _rows(kept: Sequence[EncodedExample], config: SupervisedConfig, masked: bool, apart: bool) -> Dataset:
    if not kept:
        raise RequestError(f"nothing to train on: no example has 1 to max_example_tokens = {config.max_example_tokens} tokens.")
    return (pack_alike if apart else pack_examples)(kept, config.row_tokens, masked)


def _arguments(model: PreTrainedModel, config: SupervisedConfig, output: Path, seed: int, steps: int, evaluated: bool) -> SFTConfig:
    return SFTConfig(
        **(_evaluation(config) if evaluated else {}),
        **trainer_arguments(model, config, output, seed, steps),
        save_steps=config.save_every,
        logging_steps=min(config.log_every, steps),
        per_device_train_batch_size=config.rows_per_pass,
        per_device_eval_batch_size=config.rows_per_pass,
        gradient_accumulation_steps=passes_of(config),
        activation_offloading=config.activation_offloading and torch.cuda.is_available(),
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},  # rows are already packed and labelled
    )


def _evaluation(config: SupervisedConfig) -> dict[str, Any]:
    return {"eval_strategy": "steps", "eval_steps": config.save_every, "load_best_model_at_end": True, "metric_for_best_model": "loss"}


def _pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def _data_metrics(kept: Sequence[EncodedExample], given: int, rows: Dataset, row_tokens: int, masked: bool) -> dict[str, Any]:
    tokens = sum(len(example.token_ids) for example in kept)
    return {
        "examples": len(kept),
        "examples_left_out": given - len(kept),
        "tokens": tokens,
        "trained_tokens": sum(sum(example.trained) for example in kept) if masked else tokens,
        "rows": len(rows),
        "packed": packed_share(rows["seq_lengths"], row_tokens),
    }


def train_sft(
    policy_path: Path,
    examples: Sequence[EncodedExample],
    output: Path,
    config: SftConfig,
    seed: int,
    on_metric: OnMetric,
    ray: RayConfig | None = None,
) -> TrainResult:
    """Train on the trained tokens of `examples`; arguments and metrics as in `train_cpt`."""
    return train_on_examples(policy_path, examples, output, config, seed, on_metric, masked=config.mask_observations, ray=ray)


def pack_examples(examples: Sequence[EncodedExample], row_tokens: int, masked: bool) -> Dataset:
    """Pack examples into rows with the columns `input_ids`, `labels` and `seq_lengths`; the order is deterministic.

    Args:
        examples: non-empty; one longer than `row_tokens` gets a row of its own.
        masked: whether untrained tokens are excluded from the loss.
    """
    long = [example for example in examples if len(example.token_ids) > row_tokens]
    short = [example for example in examples if len(example.token_ids) <= row_tokens]
    parts = [pack_dataset(_dataset(short, masked), row_tokens, "bfd")] if short else []
    if long:
        alone = _dataset(long, masked).add_column("seq_lengths", [[len(example.token_ids)] for example in long])
        parts.append(alone.cast(parts[0].features) if parts else alone)
    return concatenate_datasets(parts)


def pack_alike(examples: Sequence[EncodedExample], row_tokens: int, masked: bool) -> Dataset:
    """Pack sequences of similar length for padding side by side, so that `row_tokens` bounds a row including its padding."""
    rows: list[list[EncodedExample]] = []
    for example in sorted(examples, key=lambda each: -len(each.token_ids)):
        if not rows or (len(rows[-1]) + 1) * len(rows[-1][0].token_ids) > row_tokens:
            rows.append([])
        rows[-1].append(example)
    whole = [EncodedExample(*(tuple(chain.from_iterable(part)) for part in zip(*map(_parts, row), strict=True))) for row in rows]
    return _dataset(whole, masked).add_column("seq_lengths", [[len(example.token_ids) for example in row] for row in rows])


def _parts(example: EncodedExample) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    return example.token_ids, example.trained


def packed_share(lengths: Iterable[Sequence[int]], row_tokens: int) -> float:
    """Fraction of the rows' capacity that tokens fill."""
    filled = [sum(row) for row in lengths]
    return sum(filled) / sum(max(size, row_tokens) for size in filled)


def _dataset(examples: Sequence[EncodedExample], masked: bool) -> Dataset:
    columns = {
        "input_ids": [list(example.token_ids) for example in examples],
        "labels": [example.labels() if masked else list(example.token_ids) for example in examples],
    }
    return Dataset.from_dict(columns)


@dataclass(frozen=True, slots=True)
class PackingCollator:
    """Batches of packed rows: `input_ids`, `labels` and `position_ids`, (rows, tokens), or (1, tokens) if `joined`."""

    pad_token_id: int
    joined: bool = False
    """Join all rows into one, with boundaries and without padding."""
    apart: bool = False
    """Put each sequence into its own row, with an `attention_mask` instead of positions."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self._one_row(rows) if self.joined else self._side_by_side(rows) if self.apart else self._padded(rows)

    def _side_by_side(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        lengths = [length for row in rows for length in row["seq_lengths"]]
        ids, labels = (_parted(chain.from_iterable(row[name] for row in rows), lengths) for name in ("input_ids", "labels"))
        width = max(lengths)
        mask = torch.tensor([_pad([1] * length, width, 0) for length in lengths])
        padded = torch.tensor([_pad(own, width, self.pad_token_id) for own in ids])
        taught = torch.tensor([_pad([IGNORED_LABEL, *own[1:]], width, IGNORED_LABEL) for own in labels])
        return {"input_ids": padded, "labels": taught, "attention_mask": mask}

    def _one_row(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        lengths = list(chain.from_iterable(row["seq_lengths"] for row in rows))
        ids, labels = (torch.tensor([list(chain.from_iterable(row[name] for row in rows))]) for name in ("input_ids", "labels"))
        positions = torch.tensor([row_positions(lengths)])
        return {"input_ids": ids, "labels": _without_firsts(labels, positions), "position_ids": positions, **borders(lengths)}

    def _padded(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        width = max(len(row["input_ids"]) for row in rows)
        positions = torch.tensor([_pad(row_positions(row["seq_lengths"]), width, 0) for row in rows])
        labels = torch.tensor([_pad(row["labels"], width, IGNORED_LABEL) for row in rows])
        ids = torch.tensor([_pad(row["input_ids"], width, self.pad_token_id) for row in rows])
        return {"input_ids": ids, "labels": _without_firsts(labels, positions), "position_ids": positions}


def _without_firsts(labels: Tensor, positions: Tensor) -> Tensor:
    """Mask the first token of each example, which would otherwise be predicted from the previous example."""
    return labels.masked_fill(positions == 0, IGNORED_LABEL)


def _parted(values: Iterable[int], lengths: Sequence[int]) -> list[list[int]]:
    left = iter(values)
    return [list(islice(left, length)) for length in lengths]


def _pad(values: Sequence[int], width: int, padding: int) -> list[int]:
    return [*values, *[padding] * (width - len(values))]
