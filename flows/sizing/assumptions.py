"""What `flywheel plan` cannot know and assumes; all of it is printed with the result, and options change it."""

from __future__ import annotations

from dataclasses import dataclass

from flows.config import TurnConfig
from rl.hardware import Device
from rl.rollouts.config import RolloutConfig
from warehouse.errors import RequestError


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Of the card, of how well it is used, and of what a trajectory looks like."""

    device: Device | None
    """The card; None where the configuration reserves none."""
    host_gib: float | None = None
    """Memory of the machine that processes on CPUs share; None where nobody said."""
    learner_share: float = 0.3
    """Of the peak, while the learner computes."""
    prefill_share: float = 0.4
    """Of the peak, while an engine reads prompts and observations."""
    decode_share: float = 0.6
    """Of the memory's bandwidth, while an engine samples."""
    write_gigabytes: float = 1.0
    """A second, of the folder that a version of the weights is written to and read from, where they are not sent."""
    send_gigabytes: float = 5.0
    """A second, of what a version of the weights is sent over, where it is."""
    overhead_gib: float = 2.0
    """Of each process on a card: CUDA's context, communication, graphs, what its allocator keeps."""
    prompt_tokens: int = 400
    turns: int = 5
    action_tokens: int = 64
    """Of one action, in the mean."""
    observation_tokens: int = 256
    """Of one observation, in the mean."""

    @property
    def card(self) -> Device:
        """The card of what is on one."""
        if self.device is None:
            raise RequestError("the profile reserves GPUs: say which with --device.")
        return self.device

    @property
    def trajectory_tokens(self) -> int:
        """Of a whole trajectory, in the mean."""
        return self.prompt_tokens + self.turns * (self.action_tokens + self.observation_tokens)


def assumed(
    settings: TurnConfig,
    rollout: RolloutConfig,
    device: Device | None,
    turns: int | None = None,
    action_tokens: int | None = None,
    observation_tokens: int | None = None,
) -> Assumptions:
    """Where nothing is said: the longest horizon, a quarter of an action's limit, half of an observation's, and no more than a context."""
    limits = rollout.limits
    action = action_tokens or max(1, limits.max_action_tokens // 4)
    observation = observation_tokens or max(1, limits.max_observation_tokens // 2)
    prompt = min(400, limits.max_context_tokens // 4)
    room = max(1, (limits.max_context_tokens - prompt) // (action + observation))
    wanted = turns or max(settings.rl.horizon.rounds)
    return Assumptions(device, prompt_tokens=prompt, turns=min(wanted, room), action_tokens=action, observation_tokens=observation)
