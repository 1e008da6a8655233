"""Variants of a stage: policies that the wheel does not make itself, there to be compared with its own."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from warehouse.errors import RequestError


class Variant(StrEnum):
    """A variant by the name that `--variant`, ids of policies and `runs.config` have for it."""

    FIXED_FIRST = "fixed_first"
    """RL with the horizon fixed at its first value."""
    FIXED_LAST = "fixed_last"
    """RL with the horizon fixed at its last value."""
    WITHOUT_CPT = "without_cpt"
    """SFT and RL of a policy that skipped pre-training."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that have this variant."""
        return ("sft", "rl") if self is Variant.WITHOUT_CPT else ("rl",)


HORIZONS = (Variant.FIXED_FIRST, Variant.FIXED_LAST)
"""Those that differ from the wheel's own RL by the horizon alone."""


def horizons(variant: str, rounds: Sequence[int]) -> tuple[int, ...]:
    """The values of the horizon in RL under a variant, of the `rounds` that the curriculum has: all of them under any other name."""
    fixed = {Variant.FIXED_FIRST.value: rounds[:1], Variant.FIXED_LAST.value: rounds[-1:]}
    return tuple(fixed.get(variant, rounds))


def check_variant(stage: str, variant: str) -> None:
    """Raises RequestError where a stage has no such variant."""
    offered = [each.value for each in Variant if stage in each.stages]
    if variant not in offered:
        raise RequestError(f"the stage {stage} has no variant {variant}; it has {', '.join(sorted(offered)) or 'none'}.")
