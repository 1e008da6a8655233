"""Encode untrusted text: no control tokens, repaired surrogates, truncation to a token limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from rl.content import mended
from rl.renderers.base import TRUNCATION_MARKER, Truncation
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CHARACTERS_A_TOKEN = 64
"""Texts longer than this many characters per allowed token are shortened before encoding."""


class PlainText:
    """A tokenizer without its added tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise RequestError(f"the policy's tokenizer is a {type(tokenizer).__name__}, but a fast one is needed: add its tokenizer.json.")
        added = backend.get_added_tokens_decoder()
        self.added = {token.content: int(number) for number, token in added.items()}
        self.special = {token.content: int(number) for number, token in added.items() if token.special}
        self.size = int(backend.get_vocab_size())
        self.end = frozenset([] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)])
        self.control = frozenset(self.added.values()) | self.end
        self._backend: Tokenizer = backend
        self._tokenizer = _without_added_tokens(backend)
        self._marker = len(self.ids(TRUNCATION_MARKER))

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, none of them a control token."""
        ids = self._encode(text)
        return ids if self.control.isdisjoint(ids) else tuple(i for letter in text for i in self._encode(letter) if i not in self.control)

    def cut(self, text: str, cut: Truncation) -> str:
        """Truncate `text` to `cut.max_tokens` tokens including the marker."""
        text, shortened = _shortened(text, cut)
        text = mended(text)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) <= cut.max_tokens and not shortened:
            return text
        room = max(0, min(len(encoding.ids), cut.max_tokens - self._marker))
        while room > 0:
            kept = _kept(text, encoding.offsets, room, cut)
            excess = len(self.ids(kept)) - cut.max_tokens
            if excess <= 0:
                return kept
            room -= excess
        return TRUNCATION_MARKER

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=False)

    def decoder(self) -> Callable[[Sequence[int]], str]:
        """A function that decodes a growing sequence in parts; a character is returned once all its tokens are there."""
        stream = DecodeStream(skip_special_tokens=False)
        return lambda token_ids: "".join(filter(None, (stream.step(self._backend, token) for token in token_ids)))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(mended(text), add_special_tokens=False).ids)


def _kept(text: str, offsets: list[tuple[int, int]], room: int, cut: Truncation) -> str:
    """Keep `room` tokens of `text`, with the marker in place of the rest."""
    right = {"right": 0, "left": room, "middle": room // 2}[cut.side]
    left = room - right
    start = offsets[left - 1][1] if left else 0
    end = offsets[len(offsets) - right][0] if right else len(text)
    return text[:start] + TRUNCATION_MARKER + text[max(start, end) :]


def _shortened(text: str, cut: Truncation) -> tuple[str, bool]:
    """Return the relevant ends of a very long text, and whether text was dropped; keeps huge tool outputs away from the tokenizer."""
    most = cut.max_tokens * _CHARACTERS_A_TOKEN
    if len(text) <= 2 * most:
        return text, False
    return {"right": text[:most], "left": text[-most:], "middle": text[:most] + text[-most:]}[cut.side], True


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    description = json.loads(tokenizer.to_str())
    description.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(description))
