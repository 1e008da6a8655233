"""Attention over sequences that share a row, without padding and without a mask, and which attention a learner computes.

Rows of different lengths side by side need padding and, where anything is padded or packed, a mask of tokens times tokens, which grows with
the square of the context. Joined into one row they need neither: kernels for sequences of several lengths take their borders alone
(`cu_seq_lens`, as FlashAttention has them, arXiv 2205.14135). `varlen` here is such an attention on every device: torch's own kernel on
GPUs, and each sequence by itself on CPUs and in float32. A sequence may go on from another one of the row, as the trajectories of a group
do from their prompt, which then stands there once: attention is that of sequences which are whole, and all else is computed once.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from rl.training.optimizer_config import OptimizerConfig
from rl.training.precision import computes_in_bfloat16
from warehouse.errors import RequestError, first_line

VARLEN = "varlen"
FLASH = ("flash_attention_3", "flash_attention_2")
JOINED = frozenset({VARLEN, *FLASH, "flex_attention"})
"""What keeps sequences of one row apart without a mask of tokens times tokens; transformers has the others."""
CAUSAL = (-1, 0)
UNKNOWN = ("softcap", "s_aux", "position_bias")
"""What models hand to their attention and `varlen` has not."""
DROPOUTS = ("attention_dropout", "attn_pdrop")
"""What configurations call the dropout of attention."""
TRIED = 8
"""Tokens of each of the two sequences that `keeps_apart` tries."""
SEPARABLE = frozenset({"full_attention", "sliding_attention"})

# Before torch 2.12 fewer heads of keys than of queries were taken unasked.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    pieces: Sequence[tuple[int, int]] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention of one row's sequences, each over itself, as transformers calls an attention.

    Args:
        query: (1, heads, tokens, size); keys and values may have fewer heads.
        cu_seq_lens_q: (sequences + 1), int32: where each sequence begins, and where the last ends.
        max_length_q: the longest of them.
        pieces: what stands in the row where sequences share a beginning: the tokens of each piece, and the number of the piece that it goes
            on from, -1 where that is none. `cu_seq_lens_q` and `max_length_q` are then of sequences that are whole, a piece each.

    Returns:
        (1, tokens, heads, size), and no weights.

    Raises:
        ValueError: the model asks for something else.
    """
    asked = [name for name in UNKNOWN if others.get(name) is not None]
    if attention_mask is not None or sliding_window is not None or dropout or asked:
        raise ValueError(f"attn_implementation = {VARLEN} has no mask, window, dropout, {', '.join(UNKNOWN)}, and this model asks for one")
    if cu_seq_lens_q is None or max_length_q is None or query.size(0) != 1:
        raise ValueError(f"attn_implementation = {VARLEN} takes one row and the borders of its sequences")
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (each.to(torch.get_autocast_dtype(query.device.type)) for each in (query, key, value))
    if pieces is None:
        return _over_themselves(query, key, value, cu_seq_lens_q, max_length_q, scaling), None
    whole = [_made_whole(each, pieces) for each in (query, key, value)]
    query, key, value = (torch.cat(parts, dim=2) for parts in whole)
    found = _over_themselves(query, key, value, cu_seq_lens_q, max_length_q, scaling)
    parted = torch.split(found, [part.size(2) for part in whole[0]], dim=1)
    return torch.cat([part[:, -length:] for part, (length, _) in zip(parted, pieces, strict=True)], dim=1), None


def _made_whole(states: Tensor, pieces: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The states (1, heads, tokens, size) of each piece behind those of the one that it goes on from."""
    parts = torch.split(states, [length for length, _ in pieces], dim=2)
    return [part if first < 0 else torch.cat((parts[first], part), dim=2) for part, (_, first) in zip(parts, pieces, strict=True)]


def _over_themselves(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scaling: float | None) -> Tensor:
    if query.is_cuda and query.dtype != torch.float32:
        query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
        found = varlen_attn(query, key, value, ends, ends, longest, longest, scale=scaling, window_size=CAUSAL, **GROUPED)
        return cast(Tensor, found).unsqueeze(0)
    # Split, and not sliced: the gradient of each slice would be as long as the row.
    lengths = ends.diff().tolist()
    parts = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), strict=True)
    causal: dict[str, Any] = {"is_causal": True, "scale": scaling, "enable_gqa": query.size(1) != key.size(1)}
    return torch.cat([scaled_dot_product_attention(*part, **causal).transpose(1, 2) for part in parts], dim=1)


AttentionInterface.register(VARLEN, varlen_attention)


def set_attention(model: PreTrainedModel, config: OptimizerConfig) -> None:
    """Have `model` compute the attention that `config` asks for.

    Raises:
        RequestError: it cannot.
    """
    chosen = choose_attention(model, config)
    try:
        model.set_attn_implementation(chosen)
    except (ImportError, ValueError) as error:
        raise RequestError(f"attn_implementation = {chosen} cannot be had here: {first_line(error)}") from error


def choose_attention(model: PreTrainedModel, config: OptimizerConfig) -> str:
    """What `config` names, or for `auto`: FlashAttention where it is installed and computes, else `varlen`, and what the model was loaded
    with where `varlen` would not be its attention.

    Raises:
        RequestError: the model's attention is not what `varlen` computes.
    """
    reason = obstacle(model, VARLEN)
    if config.attn_implementation != "auto":
        if config.attn_implementation == VARLEN and reason:
            raise RequestError(f"attn_implementation = {VARLEN} does not go with this policy: {reason}; leave it at auto.")
        return config.attn_implementation
    if reason:
        return str(model.config._attn_implementation)
    return next(iter(_installed(model, config)), VARLEN)


def joins_rows(model: PreTrainedModel) -> bool:
    """Whether the attention that `model` computes keeps sequences of one row apart without a mask."""
    chosen = str(model.config._attn_implementation)
    return chosen in JOINED and obstacle(model, chosen) is None


def shares_prompts(model: PreTrainedModel) -> bool:
    """Whether sequences of one row may also go on from another that stands there once: `varlen` alone takes such pieces."""
    return joins_rows(model) and str(model.config._attn_implementation) == VARLEN


@torch.no_grad()
def keeps_apart(model: PreTrainedModel) -> bool:
    """Whether sequences that share a row say to `model`, which is told them apart by their positions, what they say alone.

    It is tried, where nothing says it: models that carry a state or take images look across the borders, and so do others, such as GPT-OSS.
    """
    if joins_rows(model):
        return True
    config, backbone = model.config.get_text_config(), model.base_model
    carries = model._is_stateful or set(getattr(config, "layer_types", None) or ()) - SEPARABLE
    if config is not model.config or carries or "position_ids" not in inspect.signature(backbone.forward).parameters:
        return False
    ids = torch.arange(2 * TRIED, device=model.device).unsqueeze(0) % config.vocab_size
    was_training = model.training
    model.train(False)
    alone = backbone(input_ids=ids[:, TRIED:], use_cache=False).last_hidden_state
    shared = backbone(input_ids=ids, position_ids=ids % TRIED, use_cache=False).last_hidden_state[:, TRIED:]
    model.train(was_training)
    return bool((shared - alone).norm() < 1e-2 * alone.norm())


def obstacle(model: PreTrainedModel, implementation: str) -> str | None:
    """Why sequences of `model` cannot share a row under an attention of `JOINED`; None where they can."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if config is not model.config:
        return "it takes images"
    if model._is_stateful or kinds - SEPARABLE:
        return "it has layers that carry a state from token to token"
    if not model._supports_attention_backend:
        return "its code does not leave attention to choice"
    limited = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None) is not None)
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    dropped = any(getattr(config, name, None) for name in DROPOUTS)
    if implementation == VARLEN and (limited or capped or dropped):
        return "its attention has a window, a cap or dropout"
    return None


def _installed(model: PreTrainedModel, config: OptimizerConfig) -> list[str]:
    """FlashAttention, the newer first, where it is there and can compute: on GPUs, in half precision."""
    if not config.learner.gpus or not model._supports_flash_attn or not computes_in_bfloat16(config, model.num_parameters()):
        return []
    there = (is_flash_attn_3_available(), is_flash_attn_2_available())
    return [name for name, found in zip(FLASH, there, strict=True) if found]
