r"""The process that compares expressions with math-verify: `python -m eval.graders.math_worker`, JSON lines in and out.

    {"gold": "\\frac12", "prediction": "0.5", "seconds": 4} -> {"same": true} or {"error": "…"}

math-verify hangs on some inputs, and its own timeouts use signals, which neither threads nor long C calls honour. So this process forks a
child that parses, and kills it at the deadline. It loads and warms up math-verify before forking, so a new child costs milliseconds.
Children also have limits on memory and processor time.

math-verify's own comparison is not symmetric, equates 9 % and 9, rounds to six decimals, so that 1e-7 equals 2e-7, drops units, and equates
the tuple (1, 2) and the set of 1 and 2. Here both directions must agree, both sides must be of one kind, numbers must agree to nine digits,
and units must not differ.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
import time
from typing import Any, BinaryIO

from math_verify import LatexExtractionConfig, parse, verify
from sympy import And, Eq, Expr, FiniteSet, Float, Intersection, Interval, MatrixBase, MatrixExpr, Rational, Set, Symbol, Tuple
from sympy import Union as SymbolicUnion
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction

from eval.graders.mathematics import MOST_WAITING, read_line
from eval.graders.numbers import same_unit

MEMORY = 2 << 30
"""Address space of the child in bytes."""
PROCESSOR_SECONDS = 600
"""Lifetime limit of a child in processor seconds, in case nothing is left to kill it."""
SERVED = 200
"""Comparisons before a child is replaced, because sympy never frees its caches."""
_TICK_SECONDS = 0.25
DIGITS = 9
"""Significant digits to which a decimal must agree with an exact value."""

_COMMAND = re.compile(
    r"\\(?:begin|end|mathbb)\s*\{\w+\*?\}(?:\{[clr|]+\})?|\\(?:text|mathrm|textbf|mbox|operatorname)\s*\{([^{}]*)\}|\\[A-Za-z]+"
)
_POWER = re.compile(r"\s*\^\s*\{?([23])\}?(?![0-9])")
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])")
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


def main() -> None:
    warm()
    supervisor = _Supervisor()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(supervisor.answer(line, float(json.loads(line)["seconds"])))
        sys.stdout.buffer.flush()
    supervisor.end()


class _Supervisor:
    def __init__(self) -> None:
        self._child: tuple[int, BinaryIO, BinaryIO] | None = None
        self._served = 0

    def answer(self, line: bytes, seconds: float) -> bytes:
        """Return the child's answer, or an error after `seconds` of computing."""
        if self._child is None:
            self._child, self._served = self._fork(), 0
        process, questions, answers = self._child
        questions.write(line)
        questions.flush()
        reply, in_time = _reply(process, answers, seconds)
        self._served += 1
        if not reply or self._served >= SERVED:
            self.end()
        return reply or _error("the comparison ended its process" if in_time else "the comparison took too long")

    def end(self) -> None:
        if self._child is not None:
            process, questions, answers = self._child
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            questions.close()
            answers.close()
            self._child = None

    def _fork(self) -> tuple[int, BinaryIO, BinaryIO]:
        asked, asking = os.pipe()
        answered, answering = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(asking)
            os.close(answered)
            _serve(os.fdopen(asked, "rb"), os.fdopen(answering, "wb"))
        os.close(asked)
        os.close(answering)
        return process, os.fdopen(asking, "wb"), os.fdopen(answered, "rb", buffering=0)


def _reply(process: int, answers: BinaryIO, seconds: float) -> tuple[bytes, bool]:
    """Like `read_line`, but `seconds` count the child's processor time, so that waiting on a busy machine does not count."""
    began, end = _processor_seconds(process), time.monotonic() + MOST_WAITING * seconds
    while True:
        reply, in_time = read_line(answers, _TICK_SECONDS)
        if reply or in_time or _processor_seconds(process) - began > seconds or time.monotonic() > end:
            return reply, in_time


def _processor_seconds(process: int) -> float:
    """Processor time of another process, from its Linux clock (clock_getcpuclockid)."""
    return time.clock_gettime(~process << 3 | 2)


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in questions:
        request = json.loads(line)
        try:
            answer = json.dumps({"same": same_expression(request["gold"], request["prediction"])}).encode() + b"\n"
        except MemoryError:
            break
        except Exception as error:  # the parser and sympy may raise anything
            answer = _error(f"{type(error).__name__}: {error}"[:200])
        answers.write(answer)
        answers.flush()
    os._exit(0)


def _error(reason: str) -> bytes:
    return json.dumps({"error": reason}).encode() + b"\n"


def same_expression(gold: str, prediction: str) -> bool:
    """Return whether the two are equal; False if the prediction cannot be parsed. Raises ValueError if the gold cannot."""
    right, given = _read(gold), _read(prediction)
    if right is None:
        raise ValueError("the gold cannot be read as mathematics")
    if given is None or _units_differ(gold, prediction, right, given):
        return False
    right, given = _alike((right, gold), (given, prediction))
    if not _one_kind(right, given):
        return False
    return (_verified(right, given) or _verified(_exact(right), _exact(given))) and _close(right, given)


def _verified(right: Any, given: Any) -> bool:
    both_ways = ((right, given), (given, right))
    same_set = isinstance(right, Set) and right == given
    return same_set or all(verify(one, other, float_rounding=DIGITS, timeout_seconds=None) for one, other in both_ways)


def _exact(value: Any) -> Any:
    floats = value.atoms(Float) if hasattr(value, "atoms") else ()
    return value.xreplace({number: Rational(str(number)) for number in floats})


def _alike(*sides: tuple[Any, str]) -> tuple[Any, ...]:
    """Return the values of both sides. Inequalities of one variable become their solution set if the other side is an interval or a set."""
    plain = [_kind(value) in ("interval", "set") and not _inequalities(value) for value, _ in sides]
    if not any(plain):
        return tuple(value for value, _ in sides)
    return tuple(value if a_set else _solutions(value, latex) for (value, latex), a_set in zip(sides, plain, strict=True))


def _inequalities(value: Any) -> tuple[Any, ...]:
    """The inequalities that a value consists of (several are parsed as a set of them); empty for anything else."""
    members = value.args if isinstance(value, FiniteSet) else (value,)
    return members if all(isinstance(member, Relational | And) and not isinstance(member, Eq) for member in members) else ()


def _solutions(value: Any, latex: str) -> Any:
    """The solutions of inequalities of one real variable, joined by "or" or intersected; any other value unchanged."""
    value = _of_symbol(value)
    members = _inequalities(value)
    if not members or len(value.free_symbols) != 1:
        return value
    allowed = [member.as_set() for member in members]
    return SymbolicUnion(*allowed) if _OR.search(latex) else Intersection(*allowed)


def _of_symbol(value: Any) -> Any:
    functions = value.atoms(AppliedUndef) if _inequalities(value) else set()
    other = value.xreplace(dict.fromkeys(functions, Symbol("y", real=True))) if len(functions) == 1 else value
    return other if len(other.free_symbols) == 1 else value


def warm() -> None:
    """Compare some expressions of every kind, so that the parser builds its tables before the first fork."""
    logging.disable(logging.WARNING)
    for gold, prediction in _WARMING:
        same_expression(gold, prediction)


def _read(latex: str) -> Any:
    """Parse all of `latex`. Without an anchor math-verify would extract a fraction from what it cannot parse as a whole."""
    whole = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)
    boxed = rf"\boxed{{{latex}}}"
    found = parse(boxed, [whole], fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return found[0] if found else None


def _one_kind(right: Any, given: Any) -> bool:
    kinds = {_kind(right), _kind(given)}
    if kinds == {"relation", "expression"}:
        return all(_kind(value) == "expression" or _assigns(value) for value in (right, given))
    return len(kinds) == 1


def _kind(value: Any) -> str:
    kinds = {"interval": Interval, "set": Set, "tuple": Tuple, "matrix": MatrixBase | MatrixExpr, "relation": Relational | BooleanFunction}
    return next((name for name, types in kinds.items() if isinstance(value, types)), "expression")


def _assigns(value: Any) -> bool:
    return isinstance(value, Eq) and isinstance(value.lhs, Symbol)


def _units_differ(gold: str, prediction: str, right: Any, given: Any) -> bool:
    """Return whether the words that are not variables differ; a plain number may omit its unit."""
    symbols = [bool(getattr(value, "free_symbols", None)) for value in (right, given)]
    names = {name for value in (right, given) if _inequalities(value) for name in _names(value)}
    units = [" ".join(word for word in _unit(text).split() if word.lower() not in names | {"or"}) for text in (gold, prediction)]
    if all(symbols) or same_unit(*units):
        return False
    return _kind(right) in ("interval", "set", "tuple", "matrix") or (all(units) and not any(symbols))


def _names(value: Any) -> set[str]:
    functions = {function.func.__name__.lower() for function in value.atoms(AppliedUndef)}
    return functions | {str(symbol).lower() for symbol in value.free_symbols}


def _unit(text: str) -> str:
    spelt = "".join(_CURRENCIES.get(sign, sign) for sign in text)
    words, end = [], 0
    for found in _COMMAND.finditer(spelt):
        words.append(spelt[end : found.start()])
        power = _POWER.match(spelt, found.end()) if found[1] else None
        words.append(f" {found[1] or ''}{f' ^{power[1]}' if power else ''} ")
        end = found.end()
    return " ".join(re.findall(r"[A-Za-z]+|(?<= )\^[23](?= )", "".join([*words, spelt[end:]])))


def _close(right: Any, given: Any) -> bool:
    """Return whether plain numbers, also inside sets, tuples and matrices, agree to `DIGITS` digits; True for non-numbers."""
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


if __name__ == "__main__":
    main()
