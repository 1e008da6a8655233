"""Log-probabilities of chosen tokens: the head of the model sees the positions that somebody asks about, and not all of them at once.

Of an agent's context the policy has written a sixth, and its vocabulary is a hundred times as wide as its states: the logits of all tokens
would be larger than all else. On GPUs TRL's head builds them in tiles, for the scores and again for their gradient. Without Triton it
scores every position, so on a CPU there is a head here (`benchmarks/token_scores.py`), which builds them in pieces, and again for the
gradient where they are several. Among several workers, and for models that change their logits on the way, TRL's head is used on CPUs too.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rl.renderers.examples import IGNORED_LABEL

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
    pieces = list(zip(torch.split(picked, size), torch.split(tokens, size), strict=True))
    if len(pieces) == 1:
        return _score(head, *pieces[0], temperature, entropy_gradient)
    scores = [checkpoint(_score, head, *piece, temperature, entropy_gradient, use_reentrant=False) for piece in pieces]
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def tiled_scores(model: Any, ids: Tensor, chosen: Tensor, **inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The same by TRL's head, which `model` must have been given: on GPUs, and for models whose logits are more than what a head gives.

    Returns:
        Two tensors (N,), of which the second is there where the head gives entropies; and the loss of the experts' balance, where `inputs`
        ask for the router's logits.
    """
    outputs = model(input_ids=ids, labels=ids.masked_fill(~chosen, IGNORED_LABEL), fused_lm_head=True, **inputs)
    logprobs, entropies = (None if each is None else pad(each, (1, 0))[chosen] for each in (outputs.log_probs, outputs.entropy))
    return cast(Tensor, logprobs), entropies, outputs.aux_loss


def _score(head: Any, hidden: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(head(hidden).float() / temperature, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1), entropies
