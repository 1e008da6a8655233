"""Intervals, paired tests and estimates over repeated attempts, each by the formula that its docstring names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from scipy.stats import t as student

_RESAMPLES_AT_ONCE = 1_000_000
"""Numbers drawn in one piece of a bootstrap: 8 MB of indices, whatever the size of the sample."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two policies on the same tasks: how many both, only one or none of them solved, and McNemar's exact p-value."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float

    @property
    def tasks(self) -> int:
        """The number of pairs."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Success of b less success of a."""
        return (self.only_b - self.only_a) / self.tasks if self.tasks else 0.0


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion, without continuity correction (Wilson 1927); (0, 1) where `n` is 0.

    Centre (p + z²/2n) / (1 + z²/n), half width z·√(p(1-p)/n + z²/4n²) / (1 + z²/n).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} attempts")
    if n == 0:
        return 0.0, 1.0
    share, scale = successes / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def bootstrap_mean(values: Sequence[float], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean of `values` with its percentile bootstrap interval (Efron 1979). Raises ValueError where there are none."""
    if len(values) == 0:
        raise ValueError("no values to take the mean of")
    sample = np.asarray(values, dtype=np.float64)
    return Interval(float(sample.mean()), *_bootstrap(len(sample), lambda drawn: sample[drawn].mean(axis=1), resamples, confidence, seed))


def student_mean(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of a few independent `values`, such as one a seed, with Student's interval (Student 1908): mean ± t(n - 1) · s / √n.

    One value has no interval: its ends are the value itself. Raises ValueError where there are none.
    """
    if len(values) == 0:
        raise ValueError("no values to take the mean of")
    sample = np.asarray(values, dtype=np.float64)
    mean, size = float(sample.mean()), len(sample)
    half = float(student.ppf((1 + confidence) / 2, size - 1) * sample.std(ddof=1)) / sqrt(size) if size > 1 else 0.0
    return Interval(mean, mean - half, mean + half)


def bootstrap_difference(
    a: Sequence[float], b: Sequence[float], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Mean of b less mean of a over the same tasks, tasks resampled in pairs. Raises ValueError for unequal lengths."""
    return bootstrap_mean([right - left for left, right in zip(a, b, strict=True)], resamples, confidence, seed)


def bootstrap_ratio(
    parts: Sequence[float], wholes: Sequence[float], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """The sum of `parts` over the sum of `wholes`, one of each a task, with its percentile bootstrap interval: tasks are resampled whole.

    Attempts at one task are alike, so resampling attempts would give too narrow an interval. Raises ValueError for unequal lengths and
    where a whole is not positive.
    """
    above, below = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if len(above) != len(below) or len(below) == 0 or below.min() <= 0:
        raise ValueError("a ratio needs a positive whole for each part")

    def ratio(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(above[drawn].sum(axis=1) / below[drawn].sum(axis=1))

    return Interval(float(above.sum() / below.sum()), *_bootstrap(len(above), ratio, resamples, confidence, seed))


def _bootstrap(
    size: int, estimate: Callable[[NDArray[np.int64]], NDArray[np.float64]], resamples: int, confidence: float, seed: int
) -> tuple[float, float]:
    """The ends of a percentile bootstrap interval; `estimate` gives the figure of each row of indices drawn from `size` places."""
    generator = np.random.default_rng(seed)
    piece = max(1, _RESAMPLES_AT_ONCE // size)
    rows = (min(piece, resamples - start) for start in range(0, resamples, piece))
    found = np.concatenate([estimate(generator.integers(0, size, (count, size))) for count in rows])
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> PairedTest:
    """McNemar's exact test: the pairs in which one alone succeeded, two-sided against Binomial(n, 1/2); p is 1 without any.

    Raises ValueError for unequal lengths.
    """
    counts = Counter(zip(map(bool, a), map(bool, b), strict=True))
    only_a, only_b = counts[True, False], counts[False, True]
    p_value = float(binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0
    return PairedTest(counts[True, True], only_a, only_b, counts[False, False], p_value)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased probability that at least one of k attempts succeeds: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021)."""
    _check_attempts(n, correct, k)
    return 1 - comb(n - correct, k) / comb(n, k)


def pass_hat_k(n: int, correct: int, k: int) -> float:
    """Unbiased probability that all of k attempts succeed: C(c, k) / C(n, k) (pass^k of τ-bench, Yao et al. 2024)."""
    _check_attempts(n, correct, k)
    return comb(correct, k) / comb(n, k)


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Whether the commonest of the first k answers is right; a tie counts by the share of tied answers that are right.

    Answers must be normalised already; None is an abstention. Raises ValueError for fewer than k or unequal lengths.
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
