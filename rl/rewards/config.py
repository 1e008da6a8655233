"""`[rl.rewards]`: the verifier of RL, and the weights of reward functions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from eval.graders.choice import is_verifier, unknown
from warehouse.settings import Section

TURN_JUDGE = "turn_judge"
"""The reward function that asks the model under `evaluation.judge` about every turn."""


class RewardConfig(Section):
    """Reward of a trajectory: a weighted sum of reward functions."""

    preset: Literal["outcome", "retool", "search_r1", "search_r1_format"] = "outcome"
    """Verifier's value (`outcome`, `search_r1`), +1 or -1 (`retool`), or a scale over answer and format (`search_r1_format`)."""
    parts: dict[str, float] = Field(default_factory=dict)
    """Weights of reward functions by name, `module:attribute` or `file.py:attribute`, over the preset's; 0 removes one."""
    length_tokens: PositiveInt = 512
    """Action tokens at which the part `length` reaches -1."""
    verifier: str | None = None
    """Default verifier of RL; None: `evaluation.verifier`."""

    @property
    def judges_turns(self) -> bool:
        """Whether a judge of single turns takes part."""
        return bool(self.parts.get(TURN_JUDGE))

    @field_validator("verifier")
    @classmethod
    def _check_verifier(cls, name: str | None) -> str | None:
        if name is not None and not is_verifier(name):
            raise ValueError(unknown(name))
        return name
