"""Does the engine compute what the learner computes? Compares the log-probabilities stored in trajectories with the model's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from rl.policies.vision import Vision
from warehouse.records import Trajectory


def max_logprob_difference(
    model: PreTrainedModel, trajectories: Sequence[Trajectory], temperature: float = 1.0, vision: Vision | None = None
) -> float:
    """Largest of `logprob_differences`, in nats; 0.0 where nothing was sampled."""
    differences = logprob_differences(model, trajectories, temperature, vision)
    return float(differences.max()) if len(differences) else 0.0


def logprob_differences(
    model: PreTrainedModel, trajectories: Sequence[Trajectory], temperature: float = 1.0, vision: Vision | None = None
) -> torch.Tensor:
    """Absolute differences of all sampled tokens, in nats, of shape (tokens,).

    Args:
        model: the policy that the trajectories were sampled with, in the same precision.
        temperature: what they were sampled at; greedy ones are compared at 1, as the engine records them.
        vision: what the policy makes of images, where the trajectories hold any.
    """
    scale = temperature if temperature > 0 else 1.0
    parts = [_differences(model, trajectory, scale, vision) for trajectory in trajectories if trajectory.turns]
    return torch.cat([torch.zeros(0), *parts])


@torch.no_grad()
def _differences(model: PreTrainedModel, trajectory: Trajectory, temperature: float, vision: Vision | None) -> torch.Tensor:
    if trajectory.images and vision is None:
        raise ValueError(f"trajectory {trajectory.id} holds images, and nothing says what the policy makes of them")
    ids = list(trajectory.prompt_ids)
    positions: list[int] = []
    sampled: list[float] = []
    for turn in trajectory.turns:
        positions.extend(range(len(ids) - 1, len(ids) - 1 + len(turn.action_ids)))
        sampled.extend(turn.action_logprobs)
        ids.extend(turn.action_ids + turn.observation_ids)
    context = torch.tensor([ids], device=model.device)
    pixels = vision.inputs(trajectory.images) if vision is not None and trajectory.images else {}
    logits = model(input_ids=context, **{name: value.to(model.device) for name, value in pixels.items()}).logits
    logprobs = torch.log_softmax(logits[0, positions].float() / temperature, dim=-1)
    targets = context[0, [position + 1 for position in positions]]
    own = logprobs.gather(1, targets[:, None])[:, 0].cpu()
    return (own - torch.tensor(sampled)).abs()
