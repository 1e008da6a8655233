"""Text as token ids: the tokenizer of a policy from scratch, and training examples encoded with a policy's tokenizer.

The tokenizer is byte-level BPE in which chosen words are single tokens. A small policy learns to copy names only where a name's words are
one token each, so the words of the world are given beside the texts and the result is checked. The tags of the dialect are special
tokens, so no text can spell one unless it is asked to.

The segments of an example are tokenised one by one. Their borders stand at tags, so the ids are those of the whole text. Where an example
carries the ids that an engine sampled, these are taken as they are and the text is not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from warehouse.errors import RequestError
from warehouse.records import Example

PAD_TOKEN = "<|pad|>"
END_TOKEN = "<|end|>"
TAGS = ("question", "think", "search", "information", "answer", "code")
TAG_TOKENS = tuple(token for tag in TAGS for token in (f"<{tag}>", f"</{tag}>"))
SPECIAL_TOKENS = (PAD_TOKEN, END_TOKEN, *TAG_TOKENS)

WORD_REPETITIONS = 10_000
"""How often each given word is counted in training: more than it or any text's word can plausibly occur, so that it is merged first."""


def build_tokenizer(texts: Iterable[str], vocabulary_size: int, words: Sequence[str] = ()) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer with the special tokens of the tag dialect, split into words as Qwen2 does.

    It is a `Qwen2Tokenizer` because transformers 5 loads nothing else beside a Qwen2 model: `AutoTokenizer` takes vocabulary
    and merges from the folder and everything else from that class. Each of `words` (of letters alone) becomes one token when a
    space stands before it. Equal input gives an equal tokenizer.

    Raises:
        RequestError: where `vocabulary_size` is too small for the bytes, the special tokens and the words.
    """
    rules = Qwen2Tokenizer().backend_tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(chain(_repeated(words), texts), trainer)
    trained = _as_qwen2(tokenizer)
    _check_words(trained, words, vocabulary_size)
    return trained


def add_tags(tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer from elsewhere the tags it lacks, as special tokens, and a padding token."""
    vocabulary = tokenizer.get_vocab()
    missing = [AddedToken(token, special=True, normalized=False) for token in TAG_TOKENS if token not in vocabulary]
    tokenizer.add_tokens(missing, special_tokens=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def multi_token_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[str]:
    """Those of `words` that are not one token after a space."""
    unique = list(dict.fromkeys(words))
    if not unique:
        return []
    encoded = tokenizer([f" {word}" for word in unique], add_special_tokens=False)["input_ids"]
    return [word for word, ids in zip(unique, encoded, strict=True) if len(ids) != 1]


def _as_qwen2(tokenizer: Tokenizer) -> Qwen2Tokenizer:
    """The trained vocabulary and merges in the class that `AutoTokenizer` will load them with."""
    model = json.loads(tokenizer.to_str())["model"]
    merges: list[Any] = [tuple(merge) for merge in model["merges"]]
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merges,
        unk_token=END_TOKEN,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        extra_special_tokens=list(TAG_TOKENS),
    )


def _repeated(words: Sequence[str]) -> Iterator[str]:
    """Texts in which each word occurs `WORD_REPETITIONS` times after a space."""
    chunk = 100
    return (f" {word}" * chunk for word in dict.fromkeys(words) for _ in repeat(None, WORD_REPETITIONS // chunk))


def _check_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str], vocabulary_size: int) -> None:
    pieces = multi_token_words(tokenizer, words)
    if pieces:
        examples = ", ".join(repr(word) for word in pieces[:5])
        raise RequestError(
            f"policy.vocabulary_size = {vocabulary_size} is too small: {len(pieces)} of {len(set(words))} words of the world "
            f"fall into several tokens (such as {examples}); raise it, or give fewer words, of letters alone."
        )


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
