"""The rule for each kind of answer (`GRADERS`), and the verifiers that apply the rules to trajectories.

A `Grader` is one rule, the same for rows of a file and for trajectories: it takes the answer, the accepted answers and options, and returns
a value in [0, 1] and whether it is a success. It raises ValueError if it cannot judge. The built-in graders first extract the answer from
the reply (`eval.graders.text`), and each verdict records what was read.

Only the policy's own last answer action counts: never the prompt, an observation, or text around the answer. A trajectory that ended in a
fault is invalid and has no value; one without an answer is a failure with value 0.

A task's provenance may hold `"set": true` if it asks for all of its answers instead of any one, `"verifier"`, the verifier that judges it
(by its answer, its final state or its rewards), and `"options"` of the grader, such as a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from eval.graders.answers import answer_key, exact_match, f1, join_items, normalize, read_set, set_scores, squad_match
from eval.graders.base import Verifier, graded, invalid, why_not_finished
from eval.graders.code import judged_program, passes, read_golds
from eval.graders.dates import Granularity, read_date, same_date
from eval.graders.mathematics import Extraction, expression_key, expression_of, same_mathematics
from eval.graders.numbers import Tolerance, close_number, final_number, measure, same_number, unit_key
from eval.graders.state import EnvironmentReward, StateVerifier
from eval.graders.text import final_answer, plain, without_wrapping
from warehouse.records import Score, Task, Trajectory

Golds = Sequence[str | Sequence[str]]
"""The accepted answers; for a set its items, each optionally a list of aliases."""
Options = Mapping[str, Any]
Judged = tuple[float, bool]
"""A value in [0, 1], and whether it is a success."""


class GradedAnswer(NamedTuple):
    """A value in [0, 1], whether it is a success, and what was read as the answer (None if nothing)."""

    value: float
    success: bool
    read: str | None


Rule = Callable[[str | Sequence[str], Golds, Options], Judged]
"""(answer, accepted answers, options) -> (value, success). An answer given as a list has several items."""
Reading = Callable[[str, Options], Hashable | None]
"""(answer, options) -> a key shared by equal answers; None if the rule reads nothing."""
Showing = Callable[[str, Golds, Options], str | None]
"""(answer, accepted answers, options) -> the part of the answer that the rule compares; None if it finds none."""

MOST_READ = 1_000
"""Maximum characters of the read answer in a verdict."""


@dataclass(frozen=True, slots=True)
class Grader:
    """A rule with its name, options, and a version that changes whenever its verdicts may change.

    Attributes:
        answer_in: Extracts the answer from a reply; None: uses the reply unchanged.
        shown: Extracts the part of that answer that the rule compares; None: all of it.
    """

    name: str
    version: str
    rule: Rule
    options: frozenset[str] = frozenset()
    reading: Reading | None = None
    answer_in: Callable[[str], str | None] | None = None
    shown: Showing | None = None

    def key(self, answer: str, options: Options) -> Hashable | None:
        """Return a key shared by equal answers: what the rule reads in them, else their text; None if empty."""
        answer = self._answer(answer) or ""
        read = None if self.reading is None else self.reading(answer, options)
        text = answer_key(answer)
        return read if read is not None else text if text[0] else None

    def judge(self, answer: str | Sequence[str], golds: Golds, options: Options) -> GradedAnswer:
        """Apply the rule. Raises ValueError for an unknown option, or if it cannot judge."""
        if unknown := sorted(set(options) - self.options):
            raise ValueError(f"{self.name} has no option {unknown[0]!r}; it has {', '.join(sorted(self.options)) or 'none'}")
        if not isinstance(answer, str):
            return GradedAnswer(*self.rule(answer, golds, options), join_items(answer)[:MOST_READ] or None)
        found = self._answer(answer)
        value, success = self.rule(found or "", golds, options)
        shown = found if found is None or self.shown is None else self.shown(found, golds, options)
        return GradedAnswer(value, success, shown and shown[:MOST_READ])

    def _answer(self, reply: str) -> str | None:
        return reply if self.answer_in is None else self.answer_in(reply)


def _exact_match(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    if _flag(options, "set"):
        exact = _set(answer, golds, {})[1]
        return float(exact), exact
    return _any([exact_match(_one(answer), _flat(golds))])


def _squad_match(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    return _any([squad_match(_one(answer), _flat(golds))])


def _f1(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    """The value is F1; the verdict is exact match, because "Ann beat Bob" and "Bob beat Ann" have an F1 of 1."""
    if _flag(options, "set"):
        return _set(answer, golds, {})
    return f1(_one(answer), _flat(golds)), exact_match(_one(answer), _flat(golds))


def _set(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    scores = set_scores(read_set(answer, _flat(golds)) if isinstance(answer, str) else answer, golds)
    return scores.f1, scores.exact


def _gsm8k(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    return _any(same_number(_one(answer), gold) for gold in _flat(golds))


def _number(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    tolerance = Tolerance(_bound(options, "absolute"), _bound(options, "relative"))
    return _any(close_number(_one(answer), gold, tolerance) for gold in _flat(golds))


def _date(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    name = options.get("granularity")
    if name is not None and name not in list(Granularity):
        raise ValueError(f"granularity is {name!r:.40}; it must be one of {', '.join(Granularity)}")
    granularity = None if name is None else Granularity(name)
    return _any(same_date(_one(answer), gold, granularity) for gold in _flat(golds))


def _math(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    name = options.get("extraction", Extraction.LAST)
    if name not in list(Extraction):
        raise ValueError(f"extraction is {name!r:.40}; it must be one of {', '.join(Extraction)}")
    return _any(same_mathematics(_one(answer), gold, Extraction(name)) for gold in _flat(golds))


def _code(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
    return _any([passes(_one(answer), _flat(golds))])


def _read_items(answer: str, options: Options) -> Hashable | None:
    return frozenset(map(answer_key, read_set(answer))) or None


def _read_items_of_set(answer: str, options: Options) -> Hashable | None:
    return _read_items(answer, options) if options.get("set") is True else None


def _read_words(answer: str, options: Options) -> Hashable | None:
    return normalize(answer) or None


def _read_final_number(answer: str, options: Options) -> Hashable | None:
    return final_number(answer)


def _read_measure(answer: str, options: Options) -> Hashable | None:
    found = measure(answer)
    return None if found is None else (found[0], unit_key(found[1]))


def _read_date(answer: str, options: Options) -> Hashable | None:
    found, name = read_date(answer), options.get("granularity")
    return found and ((found.at(Granularity(name)) if name in list(Granularity) else None) or found)


def _read_expression(answer: str, options: Options) -> Hashable | None:
    return expression_key(answer, _extraction(options))


def _extraction(options: Options) -> Extraction:
    return Extraction.FINAL if options.get("extraction") == Extraction.FINAL else Extraction.LAST


def _show_number(answer: str, golds: Golds, options: Options) -> str | None:
    found = final_number(answer)
    return None if found is None else str(found)


def _show_read(reading: Reading) -> Showing:
    return lambda answer, golds, options: None if reading(answer, options) is None else answer


def _show_expression(answer: str, golds: Golds, options: Options) -> str | None:
    return expression_of(answer, _extraction(options))


def _show_program(answer: str, golds: Golds, options: Options) -> str | None:
    return judged_program(answer, read_golds(_flat(golds)))


def _words(reply: str) -> str | None:
    return final_answer(plain(reply))


GRADERS: dict[str, Grader] = {
    grader.name: grader
    for grader in (
        Grader("qa_em", "5", _exact_match, frozenset({"set"}), _read_items_of_set, _words),
        Grader("qa_f1", "5", _f1, frozenset({"set"}), _read_items_of_set, _words),
        Grader("squad_em", "2", _squad_match, reading=_read_words, answer_in=final_answer),
        Grader("set", "5", _set, reading=_read_items, answer_in=_words),
        Grader("gsm8k", "6", _gsm8k, reading=_read_final_number, answer_in=without_wrapping, shown=_show_number),
        Grader("number", "5", _number, frozenset({"absolute", "relative"}), _read_measure, _words, _show_read(_read_measure)),
        Grader("date", "4", _date, frozenset({"granularity"}), _read_date, _words, _show_read(_read_date)),
        Grader("math", "6", _math, frozenset({"extraction"}), _read_expression, shown=_show_expression),
        Grader("code", "9", _code, shown=_show_program),
    )
}
"""Every grader by name. `qa_f1` gives F1 and `set` the F1 of the sets (success: the exact set); the others give 0 or 1."""


def _any(matches: Iterable[bool]) -> Judged:
    """1 if any accepted answer matches; all are tried, so that one that cannot be judged always raises."""
    matched = any(list(matches))
    return float(matched), matched


def _one(answer: str | Sequence[str]) -> str:
    if isinstance(answer, str):
        return answer
    raise ValueError("the answer is a list, but the question has one answer")


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
        raise ValueError(f"{name} is {value!r:.40}, which is not a bound")
    return Fraction(str(value))


@dataclass(frozen=True, slots=True)
class AnswerVerifier:
    grader: Grader

    @property
    def name(self) -> str:
        return self.grader.name

    @property
    def version(self) -> str:
        return self.grader.version

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """Score the trajectory's answer; invalid after a fault or if the task cannot be judged."""
        if reason := why_not_judged(task, trajectory):
            return invalid(self, trajectory, reason)
        if trajectory.answer is None:
            return graded(self, trajectory, 0.0, False)
        try:
            value, success, read = self.grader.judge(trajectory.answer, task.answers, options_of(task, self.grader))
        except ValueError as error:
            return invalid(self, trajectory, str(error))
        return graded(self, trajectory, value, success, read)


_ALL: tuple[Verifier, ...] = (*map(AnswerVerifier, GRADERS.values()), StateVerifier(), StateVerifier(strict=True), EnvironmentReward())
VERIFIERS = {verifier.name: verifier for verifier in _ALL}
"""Built-in verifiers by name, which need only the trajectory's record. Tasks and configurations may name them."""


def options_of(task: Task, grader: Grader) -> dict[str, Any]:
    """The grader's options in a task's provenance."""
    given = task.provenance.get("options")
    options = dict(given) if isinstance(given, dict) else {}
    return options | ({"set": True} if task.provenance.get("set") is True and "set" in grader.options else {})


def asks_for_set(task: Task) -> bool:
    """Return whether a task asks for all of its answers rather than any one."""
    return task.provenance.get("set") is True


def right_answer(task: Task) -> str:
    """Return an accepted answer: the list of all for a set, else the first. Raises ValueError if the task accepts none."""
    if not task.answers:
        raise ValueError(f"the task {task.key} has no accepted answer")
    return join_items(task.answers) if asks_for_set(task) else task.answers[0]


def why_not_judged(task: Task, trajectory: Trajectory) -> str | None:
    """Return why the answer cannot be judged (the trajectory ended in a fault, or the task accepts nothing), or None."""
    nothing = None if any(answer.strip() for answer in task.answers) else "the task has no accepted answer"
    return why_not_finished(trajectory) or nothing
