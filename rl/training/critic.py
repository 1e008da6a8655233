"""The critic of PPO: a value head on the policy's own hidden states, its targets, and its loss. PPO, arXiv 1707.06347.

The head reads the last hidden states. By `critic.trunk_gradient` it sends none of its gradient into them, so that the policy's is that of
its own loss alone, or so much of it as that says. It is trained with the policy, begins anew with each run, and stands in checkpoints, but
never in a policy that is written for others. Beside adapters it is trained whole, and under FSDP it is a unit of its own, for it is called
behind the model's forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl.advantages import bilevel_gae, gae, vtrace, whiten
from rl.training.batches import Row
from rl.training.config import CriticConfig
from rl.training.packing import JoinedRows

NAME = "value_head"
"""The attribute of the model that holds the head."""


class ValueHead(nn.Module):
    """Two layers from a hidden state to the value of the state; it begins at 0 everywhere."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Values (...) of hidden states (..., width), in float32 also where shards are gathered in bfloat16."""
        features = torch.tanh(self.hidden(states)).float()
        return nn.functional.linear(features, self.value.weight.float(), self.value.bias.float()).squeeze(-1)


class Critic:
    """A value head on a model, and the hidden states of the model's last forward pass, until they are asked about."""

    def __init__(self, model: PreTrainedModel, seed: int, trunk_gradient: float) -> None:
        """Put a head on `model`, seeded."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            setattr(model, NAME, ValueHead(model.config.get_text_config().hidden_size))
        model._no_split_modules = {*(model._no_split_modules or ()), ValueHead.__name__}  # what FSDP gathers as one
        model.base_model.register_forward_hook(self._keep)
        self._model = model
        self._trunk_gradient = trunk_gradient
        self._states: Tensor | None = None

    @property
    def head(self) -> nn.Module:
        """The head, which adapters wrap."""
        head: nn.Module = getattr(self._model, NAME)
        return head

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those of the head that are trained."""
        return [parameter for parameter in self.head.parameters() if parameter.requires_grad]

    def values(self, tokens: int, joined: JoinedRows | None = None, alone: bool = False) -> Tensor:
        """Values (rows, tokens) of the states that the last `tokens` tokens of the last forward pass were written in; asked once for each.

        Args:
            joined: how that pass had its rows in one, if it had.
            alone: whether no gradient goes into the states, whatever the configuration says.
        """
        assert self._states is not None, "no forward pass since the values were last asked for"
        states, self._states = self._states, None
        states = states.to(next(self.head.parameters()).dtype)
        states = states.detach() if alone or not states.requires_grad else scaled_gradient(states, self._trunk_gradient)
        if joined is not None:
            return joined.part(self.head(states))[:, -tokens - 1 : -1]
        found: Tensor = self.head(states[:, -tokens - 1 : -1])
        return found

    def _keep(self, module: nn.Module, arguments: object, output: object) -> None:
        states: Tensor = output.last_hidden_state  # type: ignore[attr-defined]
        self._states = states if self._trunk_gradient else states.detach()


def scaled_gradient(tensor: Tensor, scale: float) -> Tensor:
    """The same numbers, through which `scale` times the gradient goes."""
    held = tensor.detach()
    return held + scale * (tensor - held)


def estimate(
    rows: Sequence[Row], values: Sequence[Sequence[float]], logprobs: Sequence[Sequence[float]], estimator: str, config: CriticConfig
) -> list[Row]:
    """The rows with advantages, whitened over the step, returns, and the values that these are against.

    Args:
        values: for each row, one for each token of its completion.
        logprobs: the learner's of each token, in the same way; read by `vtrace` alone.
        estimator: `gae`, `bilevel_gae` or `vtrace`.
    """
    if not rows:
        return []
    mask, ends = (_padded([getattr(row, name) for row in rows]).bool() for name in ("action_mask", "turn_ends"))
    padded, rewards = _padded(values), torch.zeros(mask.shape, dtype=torch.float64)
    rewards[ends] = torch.tensor([reward for row in rows for reward in row.turn_rewards], dtype=torch.float64)
    if estimator == "gae":
        advantages, returns = gae(rewards, padded, mask, config.discount, config.decay)
    elif estimator == "vtrace":
        log_ratios = _padded(logprobs) - _padded([row.logprobs for row in rows])
        advantages, returns = vtrace(rewards, padded, log_ratios, mask, config.discount, config.decay, config.trust, config.trace)
    else:
        advantages, returns = bilevel_gae(rewards, padded, mask, ends, config.discount, config.decay, config.turn_discount)
    whitened = whiten(advantages, mask).tolist()
    return [
        replace(
            row, advantages=tuple(whitened[n][:size]), returns=tuple(returns[n, :size].tolist()), values=tuple(padded[n, :size].tolist())
        )
        for n, row in enumerate(rows)
        if (size := len(row.completion_ids))
    ]


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """½ Σ max((V - R)², (V_old + clip(V - V_old, ± `clip`) - R)²) over the policy's tokens; all tensors (rows, tokens).

    The clipped form is that of PPO's own code (Huang et al. 2022, «The 37 implementation details of PPO», detail 9).
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    errors = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
    return 0.5 * torch.where(mask, errors, 0).sum()


def _padded(sequences: Sequence[Sequence[float]]) -> Tensor:
    width = max(map(len, sequences))
    return torch.tensor([[*sequence, *[0.0] * (width - len(sequence))] for sequence in sequences], dtype=torch.float64)
