"""The configuration of the first policy."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveFloat, PositiveInt, model_validator

from warehouse.settings import Section

PACKAGED = Path(__file__).parent / "packaged"
"""The policies that come with the package, a folder each."""


class PolicyConfig(Section):
    """What the first policy is: a local Hugging Face path, one that comes with the package, or a small Qwen3 from scratch."""

    path: str | None = None
    """Folder of a causal language model with its tokenizer, or the name of a policy of the package, such as `reader`; the sizes below
    then have no effect."""
    layers: PositiveInt = 4
    width: PositiveInt = 128
    """Size of the hidden states."""
    heads: PositiveInt = 8
    """Many small heads learn to look up a fact sooner: with 4 of them a policy of this size had not after a million tokens."""
    key_value_heads: PositiveInt = 8
    """Divides `heads`; fewer than `heads` is grouped-query attention."""
    head_size: PositiveInt = 32
    """Width of a head; vLLM on CPUs takes 32, 64 and more."""
    intermediate_size: PositiveInt = 256
    vocabulary_size: PositiveInt = 1500
    tied_embeddings: bool = True
    initializer_range: PositiveFloat = 0.06
    """Standard deviation of the initial weights. With the usual 0.02 a model of this size does not learn to copy in time."""
    max_position_embeddings: PositiveInt = 1024
    rope_theta: PositiveFloat = 1000.0
    """Base of the rotary positions. The usual 10,000 spends half of a small head on distances that its contexts do not have."""

    @property
    def folder(self) -> Path | None:
        """Where the first policy lies; None where it is from scratch."""
        if self.path is None:
            return None
        return PACKAGED / self.path if self.path.isidentifier() and (PACKAGED / self.path).is_dir() else Path(self.path)

    @property
    def only_reads(self) -> bool:
        """Whether the first policy cannot act at all: it is from scratch, or comes with the package, where they have only read."""
        return self.folder is None or self.folder.parent == PACKAGED

    @model_validator(mode="after")
    def _check_heads(self) -> PolicyConfig:
        if self.heads % self.key_value_heads:
            raise ValueError("policy.heads must be a multiple of policy.key_value_heads")
        return self
