"""Tokenizers of policies from scratch, and extensions of pretrained ones.

Byte-level BPE in which chosen words are single tokens, because small policies copy only names whose words are one token each. The dialect's
tags are special tokens, so that ordinary text cannot produce them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from warehouse.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

PAD_TOKEN = "<|pad|>"
END_TOKEN = "<|end|>"
TAGS = ("question", "think", "search", "information", "answer", "code")
TAG_TOKENS = tuple(token for tag in TAGS for token in (f"<{tag}>", f"</{tag}>"))
SPECIAL_TOKENS = (PAD_TOKEN, END_TOKEN, *TAG_TOKENS)

WORD_REPETITIONS = 10_000
"""Count of each given word in the training text; higher than any other word's, so that it is merged first."""


def build_tokenizer(texts: Iterable[str], vocabulary_size: int, words: Sequence[str] = ()) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer with the tag dialect's special tokens, deterministically.

    Returns a `Qwen2Tokenizer`, the only class that `AutoTokenizer` (transformers 5) loads for a Qwen2 model. Each of `words` (letters only)
    becomes one token after a space.

    Raises:
        RequestError: `vocabulary_size` is too small for bytes, special tokens and words.
    """
    from transformers import Qwen2Tokenizer

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


def add_tags(tokenizer: PreTrainedTokenizerBase) -> int:
    """Add missing tags as special tokens; return their number."""
    vocabulary = tokenizer.get_vocab()
    missing = [AddedToken(token, special=True, normalized=False) for token in TAG_TOKENS if token not in vocabulary]
    return int(tokenizer.add_tokens(missing, special_tokens=True))


def set_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """Pad with the end token if there is no padding token."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def is_from_scratch(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer comes from `build_tokenizer`, so that its policy knows the tags."""
    return bool(tokenizer.eos_token == END_TOKEN)


def multi_token_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[str]:
    """Those of `words` that are not a single token after a space."""
    unique = list(dict.fromkeys(words))
    if not unique:
        return []
    encoded = tokenizer([f" {word}" for word in unique], add_special_tokens=False)["input_ids"]
    return [word for word, ids in zip(unique, encoded, strict=True) if len(ids) != 1]


def _as_qwen2(tokenizer: Tokenizer) -> Qwen2Tokenizer:
    from transformers import Qwen2Tokenizer

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
    chunk = 100
    return (f" {word}" * chunk for word in dict.fromkeys(words) for _ in repeat(None, WORD_REPETITIONS // chunk))


def _check_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str], vocabulary_size: int) -> None:
    pieces = multi_token_words(tokenizer, words)
    if pieces:
        examples = ", ".join(repr(word) for word in pieces[:5])
        raise RequestError(
            f"policy.vocabulary_size = {vocabulary_size} is too small: {len(pieces)} of {len(set(words))} words of the world "
            f"need several tokens (such as {examples}); raise it, or use fewer words with letters only."
        )
