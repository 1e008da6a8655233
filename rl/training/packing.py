"""Packed rows: several sequences share a row, and none of them sees another.

Examples of the supervised stages are packed by TRL (best fit, decreasing) into rows of fixed length. Where attention takes borders
(`rl/training/attention.py`), the rows of a pass are joined into one without padding, and so are the trajectories of a pass of reinforcement
learning. Elsewhere a row carries position ids that start anew with each example: transformers reads the borders from them and makes a mask
of tokens times tokens, so rows are kept apart, and short. Models that look across such borders (`keeps_apart`) get the sequences of a row
side by side, with padding; rows are then of sequences of similar length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, islice
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor
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


def pack_alike(examples: Sequence[EncodedExample], row_tokens: int, masked: bool) -> Dataset:
    """The same rows of sequences that are to stand side by side: of similar length, so that `row_tokens` hold their padding too."""
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
    """Makes a batch of packed rows: `input_ids`, `labels` and `position_ids`, each of shape (rows, tokens), or (1, tokens) if `joined`."""

    pad_token_id: int
    joined: bool = False
    """One row of all, with the borders of its sequences and without padding."""
    apart: bool = False
    """Each sequence a row of its own, with an `attention_mask` in the place of positions."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch. Rows that are neither joined nor apart are padded on the right, and each padding token is a sequence of its own."""
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


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Padded rows, `mask` (rows, tokens) of which is True on tokens, as one row of their sequences without padding.

    Attributes:
        places: for each token of the one row its place in the flattened `mask`; a prompt that rows share has that of the first of them.
        pieces: the tokens of each piece of it, and the number of the piece that it goes on from, -1 where that is none.
    """

    mask: Tensor
    places: Tensor
    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, mask: Tensor) -> JoinedRows:
        """Each row a sequence."""
        return cls(mask, _places(mask), tuple((length, -1) for length in mask.sum(dim=1).tolist()))

    @classmethod
    def with_shared_prompts(cls, mask: Tensor, ids: Tensor, width: int) -> JoinedRows:
        """The same, where rows that follow each other and have one prompt share it.

        The last token of a prompt stands with each of its rows: what follows it differs.

        Args:
            mask, ids: (rows, tokens).
            width: tokens of the longest prompt; shorter ones are padded on the left.
        """
        prompts, lengths = ids[:, :width].masked_fill(~mask[:, :width], -1).tolist(), mask.sum(dim=1).tolist()
        own, pieces = mask.clone(), list[tuple[int, int]]()
        for prompt, alike in groupby(range(len(prompts)), key=prompts.__getitem__):
            rows = list(alike)
            shared = sum(token >= 0 for token in prompt[:-1]) if len(rows) > 1 else 0
            if shared:
                own[rows[1:], : width - 1] = False
                pieces.append((shared, -1))
            first = len(pieces) - 1 if shared else -1
            pieces += [(lengths[row] - shared, first) for row in rows]
        return cls(mask, _places(own), tuple(pieces))

    def join(self, values: Tensor) -> Tensor:
        """Values (rows, tokens) as (1, tokens), those on padding left out."""
        return values.flatten()[self.places].unsqueeze(0)

    def part(self, values: Tensor) -> Tensor:
        """Values (1, tokens) as (rows, tokens), 0 on padding and on prompts that stand with another row."""
        return values.new_zeros(self.mask.numel()).index_copy(0, self.places, values[0]).view(self.mask.shape)

    def inputs(self) -> dict[str, Any]:
        """Positions and borders, as models of transformers take them, and the pieces of sequences that share a prompt, as `varlen` does."""
        positions, whole = self.join(self.mask.cumsum(dim=1) - 1), [before + own for before, own in self.spans]
        shared = any(first >= 0 for _, first in self.pieces)
        return {"position_ids": positions, **borders(whole, self.mask.device), **({"pieces": self.pieces} if shared else {})}

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Of each piece the tokens that stand before it, and its own."""
        return [(self.pieces[first][0] if first >= 0 else 0, length) for length, first in self.pieces]


def _places(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().squeeze(1)


def borders(lengths: Sequence[int], device: torch.device | None = None) -> dict[str, Any]:
    """Where sequences of these lengths begin and end in one row, as models of transformers take it for queries and keys."""
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def row_positions(lengths: Sequence[int]) -> list[int]:
    """Position ids of a row of examples of these lengths: 0, 1, …, 0, 1, …"""
    return [position for length in lengths for position in range(length)]


def _without_firsts(labels: Tensor, positions: Tensor) -> Tensor:
    """The labels without the first token of each example, which would be predicted from the last of the one before."""
    return labels.masked_fill(positions == 0, IGNORED_LABEL)


def _parted(values: Iterable[int], lengths: Sequence[int]) -> list[list[int]]:
    """The values in lists of these lengths."""
    left = iter(values)
    return [list(islice(left, length)) for length in lengths]


def _pad(values: Sequence[int], width: int, padding: int) -> list[int]:
    return [*values, *[padding] * (width - len(values))]
