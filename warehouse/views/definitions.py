"""Types of views and macros, and shared SQL expressions."""

from __future__ import annotations

from dataclasses import dataclass

_Z = 1.959963984540054
"""97.5 % quantile of the standard normal distribution, for 95 % intervals."""


@dataclass(frozen=True, slots=True)
class View:
    """A stored SELECT: name, the question it answers, and SQL."""

    name: str
    comment: str
    sql: str


@dataclass(frozen=True, slots=True)
class Macro:
    """A stored SELECT with parameters, called as `FROM name(…)`."""

    name: str
    parameters: str
    comment: str
    sql: str

    @property
    def signature(self) -> str:
        return f"{self.name}({self.parameters})"


def wilson(successes: str, valid: str, sign: str) -> str:
    """SQL expression for one end of Wilson's score interval, `sign` "+" for the upper; NULL if `valid` is 0.

    The lower end is exactly 0 without successes, and the upper end exactly 1 without failures.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    rate = f"({successes} / {valid})"
    half = f"{_Z} * sqrt({rate} * (1 - {rate}) / {valid} + {_Z**2} / (4 * {valid} * {valid}))"
    bound = f"(({rate} + {_Z**2} / (2 * {valid})) {sign} {half}) / (1 + {_Z**2} / {valid})"
    extreme = f"WHEN {successes} = {valid} THEN 1.0" if sign == "+" else f"WHEN {successes} = 0 THEN 0.0"
    return f"CASE WHEN {valid} = 0 THEN NULL {extreme} ELSE {bound} END"
