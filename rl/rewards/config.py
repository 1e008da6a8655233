"""`[rl.rewards]`: which verifier judges what RL trains on, and which reward functions count how much."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from eval.graders.choice import is_verifier, unknown
from warehouse.settings import Section

TURN_JUDGE = "turn_judge"
"""The reward function that asks the model under `evaluation.judge` about every turn."""


class RewardConfig(Section):
    """What a trajectory earns: the sum of its parts, each times its weight."""

    preset: Literal["outcome", "retool", "search_r1", "search_r1_format"] = "outcome"
    """`outcome` and `search_r1` are the verifier's value, `retool` is +1 or -1, `search_r1_format` the ladder over answer and format."""
    parts: dict[str, float] = Field(default_factory=dict)
    """Weights of further reward functions by name, `module:attribute` or `file.py:attribute`; laid over the preset's, 0 takes one out."""
    length_tokens: PositiveInt = 512
    """The number of action tokens at which the part `length` comes to -1."""
    verifier: str | None = None
    """The verifier that RL trains on, where a task names none of its own: a kind, `judge`, or code of your own; None is
    `evaluation.verifier`."""

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
