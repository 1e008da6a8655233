"""What a suite is large enough to show: the difference between two policies that a paired test on its tasks would find."""

from __future__ import annotations

from math import sqrt

from scipy.optimize import brentq
from scipy.stats import norm

DISCORDANT = 0.5
"""Share of tasks that one policy alone solves, where nothing is known of it: two policies that solve half of them independently."""


def detectable_difference(tasks: int, discordant: float = DISCORDANT, power: float = 0.8, level: float = 0.05) -> float | None:
    """The smallest difference in success that McNemar's test on `tasks` pairs finds with probability `power`.

    Solves n = (z₁₋ₐ⁄₂·√ψ + z_power·√(ψ - δ²))² / δ² for δ, ψ being the share of discordant pairs (R. J. Connor, "Sample size for
    testing differences in proportions for the paired-sample design", Biometrics 43, 1987). A difference cannot exceed ψ; None where even
    that would not be found. Raises ValueError for shares outside (0, 1] and fewer than one task.
    """
    if tasks < 1 or not 0 < discordant <= 1:
        raise ValueError(f"{tasks} tasks with {discordant} of them discordant")
    quantile, beyond = norm.ppf(1 - level / 2), norm.ppf(power)

    def short_by(difference: float) -> float:
        wanted = quantile * sqrt(discordant) + beyond * sqrt(discordant - difference**2)
        return float(wanted**2 / difference**2 - tasks)

    if short_by(discordant) > 0:
        return None
    return float(brentq(short_by, 1e-9, discordant))
