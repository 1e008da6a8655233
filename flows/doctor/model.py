"""The policy that training starts from: whether it loads, computes, and has a dialect that can be appended to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.doctor.machine import GIB, Check

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rl.rollouts.config import RolloutConfig

_FLOAT32 = 2
"""How much larger weights stored in 16 bits are when they are loaded."""


def model(path: Path | str | None, config: RolloutConfig) -> Check:
    """Loads the model in folder `path` as training would, and proves the dialect of `config` with its tokenizer."""
    from warehouse.errors import RequestError

    if path is None:
        return Check("model", "ok", "none is named: the first policy is made from scratch")
    folder = Path(path)
    try:
        tokenizer = _tokenizer(folder)
        _prove(tokenizer, config)
    except (RequestError, OSError, ValueError) as error:
        advice = "Name a folder with config.json, tokenizer and safetensors in policy.path; for a template, see docs/agent_loop.md."
        return Check("model", "missing", f"{folder}: {str(error)[:300]}", advice)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size * _FLOAT32 > _free_memory():
        advice = "It may train on a machine with more memory; `flywheel run --dry-run` checks the rest of the configuration here."
        return Check("model", "warn", f"{folder}: {size / GIB:.1f} GiB of weights do not fit here; «{config.dialect}» appends", advice)
    return _load(folder, tokenizer, config.dialect)


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    from warehouse.errors import RequestError

    if not (folder / "config.json").is_file():
        raise RequestError("there is no config.json in it")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _prove(tokenizer: PreTrainedTokenizerBase, config: RolloutConfig) -> None:
    """The dialect with the tags that a foreign tokenizer is given when its policy is adopted."""
    from rl.policies.tokenization import add_tags
    from rl.renderers.registry import open_dialect

    if config.speaks_tags:
        add_tags(tokenizer)
    open_dialect(config.dialect, config.dialects, tokenizer)


def _load(folder: Path, tokenizer: PreTrainedTokenizerBase, dialect: str) -> Check:
    import torch
    from safetensors import SafetensorError

    from rl.policies.policy import load_policy
    from warehouse.errors import RequestError

    try:
        policy, _ = load_policy(folder)
        with torch.inference_mode():
            finite = bool(torch.isfinite(policy(torch.tensor([[0, 1, 2, 3]])).logits).all())
    except (RequestError, SafetensorError, OSError, ValueError, RuntimeError) as error:
        return Check(
            "model",
            "missing",
            f"{folder}: {str(error)[:300]}",
            "Its weights are damaged or do not go with its config.json: fetch both again.",
        )
    count = sum(parameter.numel() for parameter in policy.parameters())
    if not finite:
        return Check("model", "missing", f"{folder} computes numbers that are not finite", "Its weights are damaged: fetch them again.")
    return Check("model", "ok", f"{folder}: {count / 1e6:,.1f} M parameters, {len(tokenizer):,} tokens, «{dialect}» appends")


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
