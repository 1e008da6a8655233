"""Whether two mathematical expressions are equal, by math-verify, and what it must not let pass.

Runs in `eval.math_worker` alone, for it may hang, and what it imports is heavy. math-verify's own comparison is not symmetric, calls
9 % and 9 equal, rounds to six decimals, so that 1e-7 equals 2e-7, drops units, and takes (1, 2) for the set of 1 and 2. Here both
directions must agree, the two must be of one kind, numbers must agree to nine digits, and units must not differ.
"""

from __future__ import annotations

import logging
import re
from typing import Any

DIGITS = 9
"""Significant digits to which a decimal must agree with an exact value."""

_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox|operatorname)\s*\{([^{}]*)\}|\\[A-Za-z]+")
_CURRENCIES = {"$": " dollars ", "€": " euros ", "£": " pounds "}
_WARMING = (
    (r"\frac{1}{2}", "0.5"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("(1,2)", "[1,2]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    ("x>2", "2<x"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("x=5", "5"),
    (r"\sin(x)", r"\cos x"),
    (r"3\pi r^2", r"5\%"),
)


def same_expression(gold: str, prediction: str) -> bool:
    """Whether the two are equal; False where the prediction cannot be read. Raises ValueError where the gold cannot."""
    from math_verify import verify

    right, given = _read(gold), _read(prediction)
    if right is None:
        raise ValueError("the gold cannot be read as mathematics")
    if given is None or not _one_kind(right, given) or _units_differ(gold, prediction, right, given):
        return False
    both_ways = ((right, given), (given, right))
    equal = all(verify(one, other, float_rounding=DIGITS, timeout_seconds=None) for one, other in both_ways)
    return equal and _close(right, given)


def warm() -> None:
    """Compare a few expressions of every kind, so that the parser has built its tables before the first fork."""
    logging.disable(logging.WARNING)
    for gold, prediction in _WARMING:
        same_expression(gold, prediction)


def _read(latex: str) -> Any:
    """The expression that all of `latex` is. Without an anchor math-verify would take a fraction out of what it cannot read as a whole."""
    from math_verify import LatexExtractionConfig, parse

    whole = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)
    boxed = rf"\boxed{{{latex}}}"
    found = parse(boxed, [whole], fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return found[0] if found else None


def _one_kind(right: Any, given: Any) -> bool:
    """Whether both are sets, intervals, tuples, matrices, relations or plain expressions; an assignment is what it assigns."""
    kinds = {_kind(right), _kind(given)}
    if kinds == {"relation", "expression"}:
        return all(_kind(value) == "expression" or _assigns(value) for value in (right, given))
    return len(kinds) == 1


def _kind(value: Any) -> str:
    from sympy import Interval, MatrixBase, MatrixExpr, Set, Tuple
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import BooleanFunction

    kinds = {"interval": Interval, "set": Set, "tuple": Tuple, "matrix": MatrixBase | MatrixExpr, "relation": Relational | BooleanFunction}
    return next((name for name, types in kinds.items() if isinstance(value, types)), "expression")


def _assigns(value: Any) -> bool:
    from sympy import Eq, Symbol

    return isinstance(value, Eq) and isinstance(value.lhs, Symbol)


def _units_differ(gold: str, prediction: str, right: Any, given: Any) -> bool:
    """Whether the words in the texts differ where they are no variables; a plain number may go without its unit."""
    symbols = [bool(getattr(value, "free_symbols", None)) for value in (right, given)]
    units = [_unit(text) for text in (gold, prediction)]
    if all(symbols) or units[0] == units[1]:
        return False
    return _kind(right) in ("interval", "set", "tuple", "matrix") or (all(units) and not any(symbols))


def _unit(text: str) -> str:
    """The words of a number's text, currency signs among them."""
    spelt = "".join(_CURRENCIES.get(sign, sign) for sign in text)
    return " ".join(re.findall(r"[A-Za-z]+", _COMMAND.sub(r" \1 ", spelt))).lower()


def _close(right: Any, given: Any) -> bool:
    """Whether plain numbers, also inside sets, tuples and matrices, agree to `DIGITS` digits; True for all that is no number."""
    from sympy import Expr, FiniteSet, Interval, MatrixBase, Tuple

    if isinstance(right, Interval) and isinstance(given, Interval):
        return _close(right.start, given.start) and _close(right.end, given.end)
    if isinstance(right, FiniteSet | Tuple) and isinstance(given, FiniteSet | Tuple):
        return all(any(_close(one, other) for other in given.args) for one in right.args)
    if isinstance(right, MatrixBase) and isinstance(given, MatrixBase):
        return all(_close(one, other) for one, other in zip(right, given, strict=True))
    if not (isinstance(right, Expr) and isinstance(given, Expr)) or right.free_symbols or given.free_symbols:
        return True
    one, other = right.doit(), given.doit()
    if one == other:
        return True
    apart, size = abs((one - other).evalf(30)), max(abs(one.evalf(30)), abs(other.evalf(30)))
    return bool(apart <= size * 10**-DIGITS)
