"""Intervals, paired tests and their power, and estimates over repeated attempts. Docstrings name the formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from typing import Any, ClassVar

import numpy as np
import scipy  # loads its slow submodules on first use

DISCORDANT = 0.5
"""Default share of discordant tasks: two policies that independently solve half of the tasks."""
_DRAWN_AT_ONCE = 1_000_000
"""Bootstrap draws per batch: 8 MB of indices, whatever the sample size."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two policies on the same tasks: numbers solved by both, only one or neither, and McNemar's exact p-value."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float

    name: ClassVar[str] = "McNemar"

    @property
    def tasks(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def before(self) -> float:
        """Success rate of a."""
        return (self.both + self.only_a) / self.tasks if self.tasks else 0.0

    @property
    def after(self) -> float:
        """Success rate of b."""
        return (self.both + self.only_b) / self.tasks if self.tasks else 0.0

    @property
    def difference(self) -> float:
        return (self.only_b - self.only_a) / self.tasks if self.tasks else 0.0


@dataclass(frozen=True, slots=True)
class SignFlips:
    """Two policies on the same tasks with several attempts: mean success over tasks, and the p-value of the sign-flip test."""

    tasks: int
    before: float
    after: float
    p_value: float
    name: ClassVar[str] = "sign flips"

    @property
    def difference(self) -> float:
        return self.after - self.before


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion, without continuity correction (Wilson 1927); (0, 1) if `n` is 0.

    Centre (p + z²/2n) / (1 + z²/n), half width z·√(p(1-p)/n + z²/4n²) / (1 + z²/n).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} attempts")
    if n == 0:
        return 0.0, 1.0
    found = scipy.stats.binomtest(successes, n).proportion_ci(2 * scipy.stats.norm.cdf(z) - 1, method="wilson")
    return float(found.low), float(found.high)


def bootstrap_mean(values: Sequence[float], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Mean of `values` with its percentile bootstrap interval (Efron 1979). Raises ValueError if empty."""
    if len(values) == 0:
        raise ValueError("no values to take the mean of")
    return _bootstrap(np.mean, [values], resamples, confidence, seed)


def student_mean(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of a few independent `values`, such as one per seed, with Student's interval: mean ± t(n - 1) · s / √n.

    One value has no interval: both ends are the value itself. Raises ValueError if empty.
    """
    if len(values) == 0:
        raise ValueError("no values to take the mean of")
    sample = np.asarray(values, dtype=np.float64)
    mean, size = float(sample.mean()), len(sample)
    half = float(scipy.stats.t.ppf((1 + confidence) / 2, size - 1) * sample.std(ddof=1)) / sqrt(size) if size > 1 else 0.0
    return Interval(mean, mean - half, mean + half)


def student_p(values: Sequence[float]) -> float:
    """Two-sided p-value of Student's t-test that the mean of `values` is 0; 1 for fewer than two values."""
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2 or np.ptp(sample) == 0:
        return float(len(sample) < 2 or sample[0] == 0)
    return float(scipy.stats.ttest_1samp(sample, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979): the i-th smallest of n times n - i + 1, never below a smaller one's, at most 1."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = adjusted[place] = min(1.0, max(highest, p_values[place] * (len(p_values) - rank)))
    return adjusted


def bootstrap_difference(
    a: Sequence[float], b: Sequence[float], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Mean of b minus mean of a over the same tasks, with a paired bootstrap interval. Raises ValueError for unequal lengths."""
    return bootstrap_mean([right - left for left, right in zip(a, b, strict=True)], resamples, confidence, seed)


def bootstrap_ratio(
    parts: Sequence[float], wholes: Sequence[float], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Sum of `parts` over sum of `wholes`, one of each per task, with a percentile bootstrap interval that resamples tasks.

    Attempts at one task are correlated, so resampling attempts would give too narrow an interval. Raises ValueError for unequal lengths and
    for a non-positive whole.
    """
    if len(parts) != len(wholes) or len(wholes) == 0 or min(wholes) <= 0:
        raise ValueError("a ratio needs a positive denominator for each part")
    return _bootstrap(_ratio, [parts, wholes], resamples, confidence, seed)


def _ratio(parts: Any, wholes: Any, axis: int = -1) -> Any:
    return np.sum(parts, axis=axis) / np.sum(wholes, axis=axis)


def _bootstrap(statistic: Callable[..., Any], samples: Sequence[Sequence[float]], resamples: int, confidence: float, seed: int) -> Interval:
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    value, size = float(statistic(*arrays)), len(arrays[0])
    if size == 1:
        return Interval(value, value, value)
    found = scipy.stats.bootstrap(
        arrays,
        statistic,
        n_resamples=resamples,
        batch=max(1, _DRAWN_AT_ONCE // size),
        vectorized=True,
        paired=True,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> PairedTest:
    """McNemar's exact test: discordant pairs, two-sided against Binomial(n, 1/2); p is 1 without any. Raises ValueError for unequal
    lengths.
    """
    counts = Counter(zip(map(bool, a), map(bool, b), strict=True))
    only_a, only_b = counts[True, False], counts[False, True]
    return PairedTest(counts[True, True], only_a, only_b, counts[False, False], sign_test(only_a, only_b))


def paired_test(a: Sequence[float], b: Sequence[float], resamples: int = 9_999, seed: int = 0) -> PairedTest | SignFlips:
    """Test b against a, given each one's share of successful attempts at the same tasks.

    The sign-flip test (Fisher 1935): under the null hypothesis the sign of each task's difference is exchangeable. If every share is 0 or
    1, this is McNemar's exact test, which is returned instead. All signs are enumerated if there are at most `resamples` combinations.

    Raises ValueError for unequal lengths and without tasks.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} and {len(b)} tasks cannot be paired")
    if all(share in (0, 1) for share in (*a, *b)):
        return mcnemar([share == 1 for share in a], [share == 1 for share in b])
    if len(a) == 1:  # both signs are equally far from 0; scipy needs two pairs
        return SignFlips(1, float(a[0]), float(b[0]), 1.0)
    found = scipy.stats.permutation_test(
        (np.asarray(b, dtype=np.float64), np.asarray(a, dtype=np.float64)),
        lambda after, before, axis: np.mean(after - before, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _DRAWN_AT_ONCE // len(a)),
        rng=np.random.default_rng(seed),
    )
    return SignFlips(len(a), float(np.mean(a)), float(np.mean(b)), float(found.pvalue))


def sign_test(only_a: int, only_b: int) -> float:
    """Two-sided p-value of the discordant pairs against Binomial(n, 1/2); 1 without any."""
    return float(scipy.stats.binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0


def detectable_difference(tasks: int, discordant: float = DISCORDANT, power: float = 0.8, level: float = 0.05) -> float | None:
    """Smallest difference in success that McNemar's test on `tasks` pairs detects with probability `power`.

    Solves n = (z₁₋ₐ⁄₂·√ψ + z_power·√(ψ - δ²))² / δ² for δ, where ψ is the share of discordant pairs (R. J. Connor, "Sample size for testing
    differences in proportions for the paired-sample design", Biometrics 43, 1987). None if not even δ = ψ, the largest possible difference,
    would be detected. Raises ValueError for shares outside (0, 1] and fewer than one task.
    """
    if tasks < 1 or not 0 < discordant <= 1:
        raise ValueError(f"{tasks} tasks with {discordant} of them discordant")
    quantile, beyond = scipy.stats.norm.ppf(1 - level / 2), scipy.stats.norm.ppf(power)

    def short_by(difference: float) -> float:
        wanted = quantile * sqrt(discordant) + beyond * sqrt(discordant - difference**2)
        return float(wanted**2 / difference**2 - tasks)

    if short_by(discordant) > 0:
        return None
    return float(scipy.optimize.brentq(short_by, 1e-9, discordant))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased probability that at least one of k attempts succeeds: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021)."""
    _check_attempts(n, correct, k)
    return 1 - comb(n - correct, k) / comb(n, k)


def pass_hat_k(n: int, correct: int, k: int) -> float:
    """Unbiased probability that all of k attempts succeed: C(c, k) / C(n, k) (pass^k of τ-bench, Yao et al. 2024)."""
    _check_attempts(n, correct, k)
    return comb(correct, k) / comb(n, k)


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Majority vote of the first k answers: 1 if right, 0 if not; for a tie, the share of tied answers that are right.

    Answers must already be normalized; None is an abstention. Raises ValueError for fewer than k or unequal lengths.
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"majority@{k} of {len(answers)} attempts")
    pairs = list(zip(answers, correct, strict=True))[:k]
    votes = Counter(answer for answer, _ in pairs if answer is not None)
    leaders = {answer for answer, count in votes.items() if count == max(votes.values())}
    right = {answer for answer, is_right in pairs if is_right}
    return len(leaders & right) / len(leaders) if leaders else 0.0


def _check_attempts(n: int, correct: int, k: int) -> None:
    if not (0 <= correct <= n and 1 <= k <= n):
        raise ValueError(f"{correct} of {n} attempts right, taken {k} at a time")
