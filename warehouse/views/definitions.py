"""What a view and a macro of the lake are, and the expressions that several of them share."""

from __future__ import annotations

from dataclasses import dataclass

_Z = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution: intervals hold 95 %."""


@dataclass(frozen=True, slots=True)
class View:
    """A stored SELECT: its name, the question that it answers, and its SQL."""

    name: str
    comment: str
    sql: str


@dataclass(frozen=True, slots=True)
class Macro:
    """A stored SELECT with parameters: called as `FROM name(…)`."""

    name: str
    parameters: str
    comment: str
    sql: str

    @property
    def signature(self) -> str:
        """The name with its parameters, as it is made and called."""
        return f"{self.name}({self.parameters})"


def wilson(successes: str, valid: str, sign: str) -> str:
    """The SQL expression of one end of Wilson's score interval, `sign` + for the upper; NULL where nothing is valid.

    At no success the lower end is 0, and with nothing but successes the upper one is 1, without the error of rounding.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    rate = f"({successes} / {valid})"
    half = f"{_Z} * sqrt({rate} * (1 - {rate}) / {valid} + {_Z**2} / (4 * {valid} * {valid}))"
    bound = f"(({rate} + {_Z**2} / (2 * {valid})) {sign} {half}) / (1 + {_Z**2} / {valid})"
    extreme = f"WHEN {successes} = {valid} THEN 1.0" if sign == "+" else f"WHEN {successes} = 0 THEN 0.0"
    return f"CASE WHEN {valid} = 0 THEN NULL {extreme} ELSE {bound} END"
