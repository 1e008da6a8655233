"""What a part of a reward is: a function of a step's attempts that gives each of them a value, or says why it cannot.

A part sees all attempts of a step together, for some look at whole groups. It never gives a zero for what it does not know: such an attempt
is left without a reward, and takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eval.verifier import Attempt
from rl.learning.config import RewardConfig


@dataclass(frozen=True, slots=True)
class Value:
    """What a part says of one attempt: its value, and how that falls on the turns where it does; or an error, and no value."""

    value: float | None
    turns: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def of_turns(cls, turns: Sequence[float]) -> Value:
        """A value that is the sum of the turns' values."""
        return cls(sum(turns), tuple(turns))

    @classmethod
    def unknown(cls, error: str) -> Value:
        """No value, and why."""
        return cls(None, (), error)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What parts may look at beside the attempts: the configuration, and the titles of the documents that prove each task's answer."""

    config: RewardConfig
    evidence: Mapping[str, frozenset[str]] = field(default_factory=dict)


Part = Callable[[Sequence[Attempt], Grounds], list[Value]]
"""A value for each attempt that is not invalid, in their order; pure.

The attempts are judged: a trajectory's `outcome` is the verifier's verdict, and its `reward` the verifier's value.
"""
