"""Packed rows: several examples share a row of fixed length, and none of them sees another.

Rows are packed by TRL (best fit, decreasing). A row carries position ids that start anew with each example, and no attention
mask: transformers reads the borders from the positions and masks attention block by block, also without flash attention.
TRL's own collator would join all rows of a batch into one, whose dense mask costs too much without flash attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from trl.data_utils import pack_dataset

from rl.renderers.examples import IGNORED_LABEL, EncodedExample


def pack_examples(examples: Sequence[EncodedExample], row_tokens: int, masked: bool) -> Dataset:
    """Rows with the columns `input_ids`, `labels` and `seq_lengths`, in an order that follows from that of `examples`.

    Args:
        examples: none empty; those longer than `row_tokens` stand in a row of their own.
        row_tokens: tokens that a row holds at most. Attention costs rows times its square, so not more than needed.
        masked: whether tokens that are not trained on leave the loss; otherwise every token is trained on.
    """
    long = [example for example in examples if len(example.token_ids) > row_tokens]
    short = [example for example in examples if len(example.token_ids) <= row_tokens]
    parts = [pack_dataset(_dataset(short, masked), row_tokens, "bfd")] if short else []
    if long:
        alone = _dataset(long, masked).add_column("seq_lengths", [[len(example.token_ids)] for example in long])
        parts.append(alone.cast(parts[0].features) if parts else alone)
    return concatenate_datasets(parts)


def packed_share(lengths: Iterable[Sequence[int]], row_tokens: int) -> float:
    """Share of the rows' room that tokens fill, of the lengths of the examples in each row; a row that is longer has no more room."""
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
    """Makes a batch of packed rows: `input_ids`, `labels` and `position_ids`, each of shape (rows, tokens)."""

    pad_token_id: int

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Pad `rows` on the right; each padding token is a sequence of its own."""
        width = max(len(row["input_ids"]) for row in rows)
        positions = torch.tensor([_pad(row_positions(row["seq_lengths"]), width, 0) for row in rows])
        labels = torch.tensor([_pad(row["labels"], width, IGNORED_LABEL) for row in rows])
        return {
            "input_ids": torch.tensor([_pad(row["input_ids"], width, self.pad_token_id) for row in rows]),
            # The first token of an example would be predicted from the last of the one before.
            "labels": labels.masked_fill(positions == 0, IGNORED_LABEL),
            "position_ids": positions,
        }


def row_positions(lengths: Sequence[int]) -> list[int]:
    """Position ids of a row of examples of these lengths: 0, 1, …, 0, 1, …"""
    return [position for length in lengths for position in range(length)]


def _pad(values: Sequence[int], width: int, padding: int) -> list[int]:
    return [*values, *[padding] * (width - len(values))]
