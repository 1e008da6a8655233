"""Variants of a stage: policies trained only for comparison with those of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from warehouse.errors import RequestError


class Variant(StrEnum):
    """A variant, as named by `--variant`, policy ids and `runs.config`."""

    FIXED_FIRST = "fixed_first"
    """RL with the horizon fixed at its first value."""
    FIXED_LAST = "fixed_last"
    """RL with the horizon fixed at its last value."""
    WITHOUT_CPT = "without_cpt"
    """SFT and RL of a policy without pre-training."""

    @property
    def stages(self) -> tuple[str, ...]:
        return ("sft", "rl") if self is Variant.WITHOUT_CPT else ("rl",)


HORIZONS = (Variant.FIXED_FIRST, Variant.FIXED_LAST)
"""Variants that differ from the pipeline's RL only in the horizon."""


def horizons(variant: str, rounds: Sequence[int]) -> tuple[int, ...]:
    """Return the RL horizons under a variant: the first or last of the curriculum's `rounds`, or all of them."""
    fixed = {Variant.FIXED_FIRST.value: rounds[:1], Variant.FIXED_LAST.value: rounds[-1:]}
    return tuple(fixed.get(variant, rounds))


def check_variant(stage: str, variant: str) -> None:
    """Raise RequestError if a stage has no such variant."""
    offered = [each.value for each in Variant if stage in each.stages]
    if variant not in offered:
        raise RequestError(f"the stage {stage} has no variant {variant}; it has {', '.join(sorted(offered)) or 'none'}.")
