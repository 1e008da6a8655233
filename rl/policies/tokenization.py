"""Tokenizers: that of a policy from scratch, and what one from elsewhere lacks.

The tokenizer is byte-level BPE in which chosen words are single tokens. A small policy learns to copy names only where a name's words are
one token each, so the words of the world are given beside the texts and the result is checked. The tags of the dialect are special
tokens, so no text can spell one unless it is asked to.
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
"""How often each given word is counted in training: more than it or any text's word can plausibly occur, so that it is merged first."""


def build_tokenizer(texts: Iterable[str], vocabulary_size: int, words: Sequence[str] = ()) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer with the special tokens of the tag dialect, split into words as Qwen2 does.

    It is a `Qwen2Tokenizer` because transformers 5 loads nothing else beside a Qwen2 model: `AutoTokenizer` takes vocabulary
    and merges from the folder and everything else from that class. Each of `words` (of letters alone) becomes one token when a
    space stands before it. Equal input gives an equal tokenizer.

    Raises:
        RequestError: where `vocabulary_size` is too small for the bytes, the special tokens and the words.
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
    """Give a tokenizer from elsewhere the tags it lacks, as special tokens; how many these are."""
    vocabulary = tokenizer.get_vocab()
    missing = [AddedToken(token, special=True, normalized=False) for token in TAG_TOKENS if token not in vocabulary]
    return int(tokenizer.add_tokens(missing, special_tokens=True))


def set_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer from elsewhere a padding token, where it has none."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def is_from_scratch(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer is one of `build_tokenizer`: its policy has learnt what the tags are, and knows no other words for it."""
    return bool(tokenizer.eos_token == END_TOKEN)


def multi_token_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[str]:
    """Those of `words` that are not one token after a space."""
    unique = list(dict.fromkeys(words))
    if not unique:
        return []
    encoded = tokenizer([f" {word}" for word in unique], add_special_tokens=False)["input_ids"]
    return [word for word, ids in zip(unique, encoded, strict=True) if len(ids) != 1]


def _as_qwen2(tokenizer: Tokenizer) -> Qwen2Tokenizer:
    """The trained vocabulary and merges in the class that `AutoTokenizer` will load them with."""
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
