"""The configuration of what is asked of engines while they run; it stands apart from the code, which imports Ray and vLLM."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from warehouse.settings import Section


class PressureConfig(Section):
    """Concurrency that follows the engines: the rule is in `rl/rollouts/admission.py`."""

    floor: PositiveInt = 32
    """Trajectories side by side that it begins with and does not go below; `rollout.concurrency` where that is less."""
    increase: PositiveInt = 16
    """How many more there may be after a look at which no engine was pressed and somebody waited for a place."""
    decrease: float = Field(default=0.7, gt=0, lt=1)
    """The share of what is under way that is left after a look at which one was; that of CUBIC (RFC 9438)."""
    kv_usage: float = Field(default=0.9, gt=0, le=1)
    """An engine is pressed where more of its cache is in use."""
    queue: NonNegativeInt = 0
    """And where more requests than this have waited in each of its steps since the last look."""
    every_seconds: PositiveFloat = 1.0
    """Pause between two looks."""
