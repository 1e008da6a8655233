"""Forward passes over joined rows: attention that separates sequences, joining of rows without padding, and scoring of chosen tokens.

Rows of different lengths need padding and a quadratic mask; joined into one row they need only their boundaries (`cu_seq_lens`, as in
FlashAttention, arXiv 2205.14135). The attention `varlen` supports this on every device: torch's kernel on GPUs, one sequence at a time on
CPUs and in float32. A sequence may continue another one in the row, as trajectories of a group continue their prompt, which is then
computed once.

Only about a sixth of a context is sampled by the policy, so logits are computed for chosen tokens only: by TRL's tiled head on GPUs, and by
`chosen_scores` with a single CPU process, in chunks recomputed for the gradient (`benchmarks/token_scores.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from rl.learner.config import OptimizerConfig, computes_in_bfloat16
from rl.renderers.examples import IGNORED_LABEL
from warehouse.errors import RequestError, first_line

VARLEN = "varlen"
FLASH = ("flash_attention_3", "flash_attention_2")
JOINED = frozenset({VARLEN, *FLASH, "flex_attention"})
"""Attention implementations that separate sequences of one row without a quadratic mask."""
CAUSAL = (-1, 0)
UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Attention arguments of models that `varlen` does not support."""
DROPOUTS = ("attention_dropout", "attn_pdrop")
"""Configuration names of attention dropout."""
TRIED = 8
"""Tokens of each of the two sequences in `keeps_apart`."""
SEPARABLE = frozenset({"full_attention", "sliding_attention"})

# Before torch 2.12, fewer key heads than query heads needed no argument.
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
    """Causal attention within each sequence of a row, with transformers' signature.

    Args:
        query: (1, heads, tokens, size); keys and values may have fewer heads.
        cu_seq_lens_q: (sequences + 1) int32, the boundaries.
        max_length_q: length of the longest sequence.
        pieces: for sequences that share a prefix: (tokens, index of the piece it continues or -1) of each piece; `cu_seq_lens_q` and
            `max_length_q` then describe the full sequences, one per piece.

    Returns:
        (1, tokens, heads, size), and None for weights.

    Raises:
        ValueError: the model needs an unsupported feature.
    """
    asked = [name for name in UNKNOWN if others.get(name) is not None]
    if attention_mask is not None or sliding_window is not None or dropout or asked:
        raise ValueError(
            f"attn_implementation = {VARLEN} does not support a mask, window, dropout, {', '.join(UNKNOWN)}; this model needs one of them"
        )
    if cu_seq_lens_q is None or max_length_q is None or query.size(0) != 1:
        raise ValueError(f"attn_implementation = {VARLEN} needs one row and the boundaries of its sequences")
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
    """States (1, heads, tokens, size) of each piece, prefixed by those of the piece it continues."""
    parts = torch.split(states, [length for length, _ in pieces], dim=2)
    return [part if first < 0 else torch.cat((parts[first], part), dim=2) for part, (_, first) in zip(parts, pieces, strict=True)]


def _over_themselves(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scaling: float | None) -> Tensor:
    if query.is_cuda and query.dtype != torch.float32:
        query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
        found = varlen_attn(query, key, value, ends, ends, longest, longest, scale=scaling, window_size=CAUSAL, **GROUPED)
        return cast(Tensor, found).unsqueeze(0)
    # Use split instead of slicing: the gradient of each slice would have the length of the row.
    lengths = ends.diff().tolist()
    parts = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), strict=True)
    causal: dict[str, Any] = {"is_causal": True, "scale": scaling, "enable_gqa": query.size(1) != key.size(1)}
    return torch.cat([scaled_dot_product_attention(*part, **causal).transpose(1, 2) for part in parts], dim=1)


AttentionInterface.register(VARLEN, varlen_attention)


def set_attention(model: PreTrainedModel, config: OptimizerConfig) -> None:
    """Set the attention that `config` asks for. Raises RequestError if it is unavailable."""
    chosen = choose_attention(model, config)
    try:
        model.set_attn_implementation(chosen)
    except (ImportError, ValueError) as error:
        raise RequestError(f"attn_implementation = {chosen} is unavailable: {first_line(error)}") from error


def choose_attention(model: PreTrainedModel, config: OptimizerConfig) -> str:
    """Name of the attention to use; `auto` is FlashAttention if usable, else `varlen`, else the model's default.

    Raises:
        RequestError: `varlen` is configured and does not fit the model.
    """
    reason = obstacle(model, VARLEN)
    if config.attn_implementation != "auto":
        if config.attn_implementation == VARLEN and reason:
            raise RequestError(f"attn_implementation = {VARLEN} does not support this policy: {reason}; use auto.")
        return config.attn_implementation
    if reason:
        return str(model.config._attn_implementation)
    return next(iter(_installed(model, config)), VARLEN)


def joins_rows(model: PreTrainedModel) -> bool:
    """Whether the model's attention separates sequences of one row without a mask."""
    chosen = str(model.config._attn_implementation)
    return chosen in JOINED and obstacle(model, chosen) is None


def shares_prompts(model: PreTrainedModel) -> bool:
    """Whether sequences may continue another one in the row: `varlen` only."""
    return joins_rows(model) and str(model.config._attn_implementation) == VARLEN


@torch.no_grad()
def keeps_apart(model: PreTrainedModel) -> bool:
    """Whether `model` computes the same for a sequence in a shared row, separated by positions only, as for the sequence alone.

    Tested by a forward pass unless known: stateful and vision models attend across boundaries, and so do others, such as GPT-OSS.
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
    """Reason why sequences of `model` cannot share a row with this attention, or None."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if config is not model.config:
        return "it takes images"
    if model._is_stateful or kinds - SEPARABLE:
        return "it has layers that carry a state from token to token"
    if not model._supports_attention_backend:
        return "its code does not support other attention implementations"
    limited = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None) is not None)
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    dropped = any(getattr(config, name, None) for name in DROPOUTS)
    if implementation == VARLEN and (limited or capped or dropped):
        return "its attention has a window, a cap or dropout"
    return None


def _installed(model: PreTrainedModel, config: OptimizerConfig) -> list[str]:
    """Usable FlashAttention versions, newest first: installed, on GPUs, in half precision."""
    if not config.learner.gpus or not model._supports_flash_attn or not computes_in_bfloat16(config, model.num_parameters()):
        return []
    there = (is_flash_attn_3_available(), is_flash_attn_2_available())
    return [name for name, found in zip(FLASH, there, strict=True) if found]


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Padded rows joined into one row without padding.

    Attributes:
        mask: (rows, tokens), True on tokens.
        places: index in the flattened `mask` of each token of the joined row; for a shared prompt, that of its first row.
        pieces: (tokens, index of the piece it continues or -1) of each piece.
    """

    mask: Tensor
    places: Tensor
    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, mask: Tensor) -> JoinedRows:
        """Join rows, each as one sequence."""
        return cls(mask, _places(mask), tuple((length, -1) for length in mask.sum(dim=1).tolist()))

    @classmethod
    def with_shared_prompts(cls, mask: Tensor, ids: Tensor, width: int) -> JoinedRows:
        """Like `of`, but adjacent rows with the same prompt share it, except for its last token, whose successors differ.

        Args:
            mask, ids: (rows, tokens).
            width: tokens of the longest prompt; shorter ones are padded on the left.
        """
        prompts, lengths = ids[:, :width].masked_fill(~mask[:, :width], -1).tolist(), mask.sum(dim=1).tolist()
        own, pieces = mask.clone(), list[tuple[int, int]]()
        for prompt, alike in groupby(range(len(prompts)), key=prompts.__getitem__):
            rows = list(alike)
            shared = sum(token >= 0 for token in prompt[:-1]) if len(rows) > 1 else 0
            if shared:
                own[rows[1:], : width - 1] = False
                pieces.append((shared, -1))
            first = len(pieces) - 1 if shared else -1
            pieces += [(lengths[row] - shared, first) for row in rows]
        return cls(mask, _places(own), tuple(pieces))

    def join(self, values: Tensor) -> Tensor:
        """Convert (rows, tokens) to (1, tokens), without padding."""
        return values.flatten()[self.places].unsqueeze(0)

    def part(self, values: Tensor) -> Tensor:
        """Convert (1, tokens) to (rows, tokens), with 0 on padding and on prompts shared from another row."""
        return values.new_zeros(self.mask.numel()).index_copy(0, self.places, values[0]).view(self.mask.shape)

    def inputs(self) -> dict[str, Any]:
        """Model arguments: positions, boundaries and, if prompts are shared, pieces."""
        positions, whole = self.join(self.mask.cumsum(dim=1) - 1), [before + own for before, own in self.spans]
        shared = any(first >= 0 for _, first in self.pieces)
        return {"position_ids": positions, **borders(whole, self.mask.device), **({"pieces": self.pieces} if shared else {})}

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(Tokens before it, own tokens) of each piece."""
        return [(self.pieces[first][0] if first >= 0 else 0, length) for length, first in self.pieces]


def _places(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().squeeze(1)


def borders(lengths: Sequence[int], device: torch.device | None = None) -> dict[str, Any]:
    """Boundaries of sequences of these lengths, as arguments for transformers."""
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def row_positions(lengths: Sequence[int]) -> list[int]:
    """0, 1, …, 0, 1, … for sequences of these lengths."""
    return [position for length in lengths for position in range(length)]


CHANGES = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
"""Settings of models whose logits are more than the head's output."""
AT_ONCE = 2**27
"""Logits computed at a time: half a GiB in float32."""


def can_choose(model: Any, workers: int) -> bool:
    """Whether `chosen_scores` supports the model: one worker, on the CPU, with plain logits."""
    if workers > 1 or not isinstance(model, PreTrainedModel) or next(model.parameters()).device.type != "cpu":
        return False
    config = model.config.get_text_config()
    plain = not any(getattr(config, name, None) for name in CHANGES) and not getattr(config, "output_router_logits", False)
    return plain and config is model.config


def chosen_scores(
    model: PreTrainedModel,
    ids: Tensor,
    chosen: Tensor,
    attention: Tensor | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each chosen token, and the entropy of its distribution in nats.

    Args:
        ids: (B, T).
        chosen: (B, T); the first token of a row is never chosen.
        attention: 1 for tokens, 0 for padding (B, T).
        entropy_gradient: whether entropies carry a gradient.
        inputs: further arguments of the backbone, such as `position_ids`.

    Returns:
        Two tensors (N,) for the N chosen tokens, row by row.
    """
    backbone: Any = model.base_model
    hidden = backbone(input_ids=ids, attention_mask=attention, use_cache=False, **inputs).last_hidden_state[:, :-1]
    picked, tokens = hidden[chosen[:, 1:]], ids[:, 1:][chosen[:, 1:]]
    head = cast(Any, model).get_output_embeddings()
    size = max(1, AT_ONCE // model.config.get_text_config().vocab_size)
    pieces = list(zip(torch.split(picked, size), torch.split(tokens, size), strict=True))
    if len(pieces) == 1:
        return _score(head, *pieces[0], temperature, entropy_gradient)
    scores = [checkpoint(_score, head, *piece, temperature, entropy_gradient, use_reentrant=False) for piece in pieces]
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def tiled_scores(model: Any, ids: Tensor, chosen: Tensor, **inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Like `chosen_scores`, with TRL's patched head, on GPUs and for models whose logits are more than the head's output.

    Returns:
        Two tensors (N,), the second None if the head gives no entropies, and the router's auxiliary loss if `inputs` ask for it.
    """
    outputs = model(input_ids=ids, labels=ids.masked_fill(~chosen, IGNORED_LABEL), fused_lm_head=True, **inputs)
    logprobs, entropies = (None if each is None else pad(each, (1, 0))[chosen] for each in (outputs.log_probs, outputs.entropy))
    return cast(Tensor, logprobs), entropies, outputs.aux_loss


def _score(head: Any, hidden: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(head(hidden).float() / temperature, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1), entropies
