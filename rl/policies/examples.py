"""Training text as token ids: examples of the lake become ids and a mask of the tokens that are trained on.

Segments are tokenised one by one. Their borders stand at tags, which are special tokens, so the ids are those of the whole
text. Where an example carries the ids that an engine sampled, these are taken as they are and the text is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from warehouse.records import Example

IGNORED_LABEL = -100
"""The label of a token that takes no part in the loss, as PyTorch and transformers have it."""


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """Token ids and, for each of them, whether it is trained on; both have the same length."""

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]

    def labels(self) -> list[int]:
        """The ids, with `IGNORED_LABEL` in the place of those that are not trained on; not shifted."""
        return [token if trained else IGNORED_LABEL for token, trained in zip(self.token_ids, self.trained, strict=True)]


def encode_examples(examples: Iterable[Example], tokenizer: PreTrainedTokenizerBase) -> list[EncodedExample]:
    """Encode `examples` in their order.

    Raises:
        ValueError: where an example's ids and loss mask differ in length.
    """
    listed = list(examples)
    pieces = iter(_encode_texts([text for example in listed if not example.token_ids for text, _ in example.segments], tokenizer))
    return [_sampled(example) if example.token_ids else _from_segments(example, pieces) for example in listed]


def _encode_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    if not texts:
        return []
    encoded: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return encoded


def _sampled(example: Example) -> EncodedExample:
    mask = example.loss_mask or (1,) * len(example.token_ids)
    if len(mask) != len(example.token_ids):
        raise ValueError(f"example {example.id}: {len(example.token_ids)} token ids but a loss mask of {len(mask)}")
    return EncodedExample(example.token_ids, tuple(bool(value) for value in mask))


def _from_segments(example: Example, pieces: Iterable[list[int]]) -> EncodedExample:
    token_ids: list[int] = []
    trained: list[bool] = []
    for (_, is_trained), ids in zip(example.segments, pieces, strict=False):  # `pieces` goes on with the next example's
        token_ids.extend(ids)
        trained.extend([is_trained] * len(ids))
    return EncodedExample(tuple(token_ids), tuple(trained))
