"""The text of single tokens, by the tokenizer that lies beside a policy's weights: what token probabilities are shown on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from flows.report.rows import rows
from warehouse import Lake


class Pieces:
    """The tokenizers of a home's policies, each loaded when it is first asked for."""

    def __init__(self, lake: Lake) -> None:
        """`lake` names the policies' folders, relative to its home; a folder outside of the home is not read."""
        home = lake.place.home.resolve()
        self._files = {row["id"]: (home / row["path"] / "tokenizer.json").resolve() for row in rows(lake, "SELECT id, path FROM policies")}
        self._files = {policy: file for policy, file in self._files.items() if file.is_relative_to(home)}
        self._loaded: dict[Path, Tokenizer | None] = {}

    def of(self, policy: str, token_ids: Sequence[int]) -> list[str]:
        """The piece of text that each token adds; the token's number in brackets where its tokenizer is not there or does not know it.

        A character whose bytes are spread over several tokens stands with the last of them.
        """
        tokenizer = self._tokenizer(policy)
        if tokenizer is None or any(token >= tokenizer.get_vocab_size() for token in token_ids):
            return [f"[{token}]" for token in token_ids]
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in token_ids]

    def text(self, policy: str, token_ids: Sequence[int]) -> str | None:
        """All of the tokens as text; None where the policy's tokenizer is not there."""
        tokenizer = self._tokenizer(policy)
        return None if tokenizer is None else str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _tokenizer(self, policy: str) -> Tokenizer | None:
        file = self._files.get(policy)
        if file is None:
            return None
        if file not in self._loaded:
            self._loaded[file] = Tokenizer.from_file(str(file)) if file.is_file() else None
        return self._loaded[file]
