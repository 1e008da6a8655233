"""How a final answer is judged: one rule a kind, the same for rows of a file and for trajectories.

A rule takes the answer, the accepted answers and options, and gives a value in [0, 1] and whether it is a success. What it cannot judge it
says by ValueError. A kind's version changes whenever its verdicts could.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from eval.answers import exact_match, f1, listed, set_scores
from eval.code import passes
from eval.dates import Granularity, same_date
from eval.mathematics import same_mathematics
from eval.numbers import Tolerance, close_number, same_number

Golds = Sequence[str | Sequence[str]]
"""The accepted answers; of a set its items, each perhaps with aliases."""
Options = Mapping[str, Any]
Judged = tuple[float, bool]
"""A value in [0, 1], and whether it is a success."""
Rule = Callable[[str | Sequence[str], Golds, Options], Judged]
"""(answer, accepted answers, options) -> (value, success). An answer that comes as a list is one of several items."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A rule with its name, version and the options that it takes."""

    name: str
    version: str
    rule: Rule
    options: frozenset[str] = frozenset()

    def judge(self, answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
        """What the rule says. Raises ValueError for an option that it does not know, and where it cannot judge."""
        if unknown := sorted(set(options) - self.options):
            raise ValueError(f"{self.name} has no option {unknown[0]!r}; it has {', '.join(sorted(self.options)) or 'none'}")
        return self.rule(answer, golds, options)


def _exact_match(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    if _flag(options, "set"):
        exact = _set(answer, golds, {})[1]
        return float(exact), exact
    matched = exact_match(_one(answer), _flat(golds))
    return float(matched), matched


def _f1(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    """The value is F1. The verdict is that of the exact match, for «Ann beat Bob» and «Bob beat Ann» have an F1 of 1."""
    if _flag(options, "set"):
        return _set(answer, golds, {})
    return f1(_one(answer), _flat(golds)), exact_match(_one(answer), _flat(golds))


def _set(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    items = listed(answer, _flat(golds)) if isinstance(answer, str) else answer
    scores = set_scores(items, golds)
    return scores.f1, scores.exact


def _gsm8k(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    return _any(same_number(_one(answer), gold) for gold in _flat(golds))


def _number(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    tolerance = Tolerance(_bound(options, "absolute"), _bound(options, "relative"))
    return _any(close_number(_one(answer), gold, tolerance) for gold in _flat(golds))


def _date(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    name = options.get("granularity")
    if name is not None and name not in list(Granularity):
        raise ValueError(f"granularity is {name!r:.40}; it is one of {', '.join(Granularity)}")
    granularity = None if name is None else Granularity(name)
    return _any(same_date(_one(answer), gold, granularity) for gold in _flat(golds))


def _math(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    return _any(same_mathematics(_one(answer), gold) for gold in _flat(golds))


def _code(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    """The accepted answers are tests as JSON; the answer is a program."""
    passed = passes(_one(answer), _flat(golds))
    return float(passed), passed


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("qa_em", "2", _exact_match, frozenset({"set"})),
        Kind("qa_f1", "2", _f1, frozenset({"set"})),
        Kind("set", "2", _set),
        Kind("gsm8k", "2", _gsm8k),
        Kind("number", "1", _number, frozenset({"absolute", "relative"})),
        Kind("date", "1", _date, frozenset({"granularity"})),
        Kind("math", "1", _math),
        Kind("code", "1", _code),
    )
}
"""Every kind by its name. `qa_f1` gives F1 and `set` the F1 of the sets (success: the exact set); the others give 0 or 1."""


def _any(matches: Any) -> Judged:
    """1 where one of the accepted answers matches; all are looked at, so that one that cannot be judged is always told."""
    matched = any(list(matches))
    return float(matched), matched


def _one(answer: str | Sequence[str]) -> str:
    if isinstance(answer, str):
        return answer
    raise ValueError("the answer is a list, and the question has one answer")


def _flat(golds: Golds) -> list[str]:
    return [name for gold in golds for name in ([gold] if isinstance(gold, str) else gold)]


def _flag(options: Options, name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.40}, neither true nor false")
    return value


def _bound(options: Options, name: str) -> Fraction:
    value = options.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r:.40}, which is no bound")
    return Fraction(str(value))
