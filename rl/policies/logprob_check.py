"""Does the engine compute what the learner computes? Compares the log-probabilities stored in trajectories with the model's own.

An engine whose weights are not the learner's makes policy gradients wrong without a sign of it, so this is looked at after every
kind of weight update, in a test and among the figures of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from warehouse.records import Trajectory


def max_logprob_difference(model: PreTrainedModel, trajectories: Sequence[Trajectory], temperature: float = 1.0) -> float:
    """Largest of `logprob_differences`, in nats; 0.0 where nothing was sampled."""
    differences = logprob_differences(model, trajectories, temperature)
    return float(differences.max()) if len(differences) else 0.0


def logprob_differences(model: PreTrainedModel, trajectories: Sequence[Trajectory], temperature: float = 1.0) -> torch.Tensor:
    """Absolute differences of all sampled tokens, in nats, of shape (tokens,).

    Args:
        model: the policy that the trajectories were sampled with, in the same precision.
        temperature: what they were sampled at; greedy ones are compared at 1, as the engine records them.
    """
    scale = temperature if temperature > 0 else 1.0
    parts = [_differences(model, trajectory, scale) for trajectory in trajectories if trajectory.turns]
    return torch.cat([torch.zeros(0), *parts])


@torch.no_grad()
def _differences(model: PreTrainedModel, trajectory: Trajectory, temperature: float) -> torch.Tensor:
    ids = list(trajectory.prompt_ids)
    positions: list[int] = []
    sampled: list[float] = []
    for turn in trajectory.turns:
        positions.extend(range(len(ids) - 1, len(ids) - 1 + len(turn.action_ids)))
        sampled.extend(turn.action_logprobs)
        ids.extend(turn.action_ids + turn.observation_ids)
    context = torch.tensor([ids], device=model.device)
    logprobs = torch.log_softmax(model(input_ids=context).logits[0, positions].float() / temperature, dim=-1)
    targets = context[0, [position + 1 for position in positions]]
    own = logprobs.gather(1, targets[:, None])[:, 0].cpu()
    return (own - torch.tensor(sampled)).abs()
