"""Configuration of the initial policy."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt, model_validator

from warehouse.settings import Section

PACKAGED = Path(__file__).parent / "packaged"
"""Folder of the packaged policies, one subfolder each."""


class PolicyConfig(Section):
    """Initial policy: a model folder, a packaged policy, or a small Qwen3 from scratch."""

    path: str | None = None
    """Folder of a causal language model, or name of a packaged policy such as `reader`; None: from scratch, with the sizes below."""
    layers: PositiveInt = 4
    """Number of layers."""
    width: PositiveInt = 128
    """Hidden size."""
    heads: PositiveInt = 8
    """Query heads per layer; many small heads learn to look up facts sooner."""
    key_value_heads: PositiveInt = 8
    """Key-value heads per layer; must divide `heads`."""
    head_size: PositiveInt = 32
    """Size of each head; vLLM on CPUs needs at least 32."""
    intermediate_size: PositiveInt = 256
    """Feed-forward size."""
    vocabulary_size: PositiveInt = 1500
    """Size of the trained tokenizer, in tokens."""
    max_position_embeddings: PositiveInt = 1024
    """Context length in tokens."""

    @property
    def folder(self) -> Path | None:
        """Folder of the initial policy; None if it is from scratch."""
        if self.path is None:
            return None
        return PACKAGED / self.path if self.path.isidentifier() and (PACKAGED / self.path).is_dir() else Path(self.path)

    @property
    def only_reads(self) -> bool:
        """Whether the initial policy cannot act yet: it is from scratch, or packaged (packaged policies are only pre-trained)."""
        return self.folder is None or self.folder.parent == PACKAGED

    @model_validator(mode="after")
    def _check_heads(self) -> PolicyConfig:
        if self.heads % self.key_value_heads:
            raise ValueError("policy.heads must be a multiple of policy.key_value_heads")
        return self
