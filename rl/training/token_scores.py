"""Log-probabilities of chosen tokens on a CPU: the head of the model sees the positions that somebody asks about, and no others.

Of an agent's context the policy has written a sixth. TRL scores every position where there is no Triton, and projects each of them once
more in the backward pass, which a large vocabulary makes much of the time (`benchmarks/token_scores.py`). On GPUs, among several workers,
and for models that change their logits on the way, TRL's own head is used.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

SMALL_VOCABULARY = 8_192
"""Tokens up to which the head costs next to nothing."""
CHANGES = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
"""Settings of models whose logits are not simply what the head gives."""
AT_ONCE = 2**27
"""Logits that are built at a time: half a GiB in float32."""


def can_choose(model: Any, workers: int) -> bool:
    """Whether the tokens of a model may be scored by `chosen_scores`."""
    if workers > 1 or not isinstance(model, PreTrainedModel) or next(model.parameters()).device.type != "cpu":
        return False
    config = model.config.get_text_config()
    plain = not any(getattr(config, name, None) for name in CHANGES) and not getattr(config, "output_router_logits", False)
    return plain and config is model.config and config.vocab_size > SMALL_VOCABULARY


def chosen_scores(
    model: PreTrainedModel,
    ids: Tensor,
    chosen: Tensor,
    attention: Tensor | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each chosen token after those before it, and the entropy of the distribution it was taken from, in nats.

    Args:
        ids: token ids (B, T).
        chosen: which of them are asked about (B, T); the first of a row never is, for nothing stands before it.
        attention: 1 for tokens, 0 for padding (B, T).
        temperature: logits are divided by it.
        entropy_gradient: whether the entropies bear a gradient.
        inputs: further arguments of the model without its head, such as `position_ids`.

    Returns:
        Two tensors (N,) for the N chosen tokens, row by row.
    """
    backbone: Any = model.base_model
    hidden = backbone(input_ids=ids, attention_mask=attention, use_cache=False, **inputs).last_hidden_state[:, :-1]
    picked, tokens = hidden[chosen[:, 1:]], ids[:, 1:][chosen[:, 1:]]
    head = cast(Any, model).get_output_embeddings()
    size = max(1, AT_ONCE // model.config.get_text_config().vocab_size)
    scores = [
        _score(head, part, own, temperature, entropy_gradient)
        for part, own in zip(torch.split(picked, size), torch.split(tokens, size), strict=True)
    ]
    if not scores:
        return picked.sum(dim=1), picked.sum(dim=1)
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _score(head: Any, hidden: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(head(hidden).float() / temperature, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1), entropies
