"""Configuration of rewards: the verifier of RL, and weights of reward functions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from eval.graders.choice import is_verifier, unknown
from warehouse.settings import Section

TURN_JUDGE = "turn_judge"
"""Name of the reward function in which the model of `evaluation.judge` judges every turn."""


class RewardConfig(Section):
    """Reward of a trajectory: a weighted sum of reward functions."""

    preset: Literal["outcome", "retool", "search_r1", "search_r1_format"] = "outcome"
    """Verifier's value (`outcome`, `search_r1`), +1 or -1 (`retool`), or a scale over answer and format (`search_r1_format`)."""
    parts: dict[str, float] = Field(default_factory=dict)
    """Weights of reward functions by name, `module:attribute` or `file.py:attribute`; override the preset's, and 0 removes a function."""
    length_tokens: PositiveInt = 512
    """Number of action tokens at which the part `length` reaches -1."""
    verifier: str | None = None
    """Default verifier of RL; None: `evaluation.verifier`."""

    @property
    def judges_turns(self) -> bool:
        """Whether the turn judge has a weight."""
        return bool(self.parts.get(TURN_JUDGE))

    @field_validator("verifier")
    @classmethod
    def _check_verifier(cls, name: str | None) -> str | None:
        if name is not None and not is_verifier(name):
            raise ValueError(unknown(name))
        return name
