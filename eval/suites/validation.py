"""Validation of a task set, and the seven traits of a good evaluation.

A valid verifier accepts the right answer of every task and rejects every answer known to be wrong. Wrong answers are derived from right
ones: nothing, the question itself, a denial, a choice, a list with another item, tags of a second answer around it, look-alike letters, a
near miss, and another task's right answer. Such an answer is known to be wrong without the verifier if its text, reduced to letters and
digits, matches no accepted one, and its number differs.

The traits of a suite, each kept, not kept or not known, with a reason: enough questions to tell policies apart, right labels, one headline
figure, one command to reproduce it, a sentence that says what it means, validated grading, and headroom on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from eval.graders.answers import join_items
from eval.graders.dates import read_date
from eval.graders.mathematics import final_expression
from eval.graders.numbers import final_number, measure
from eval.graders.verifiers import Golds, Grader, options_of
from eval.statistics import detectable_difference
from eval.suites.figures import Figure
from warehouse.records import Task

_ALIKE = str.maketrans("aeopcxyAEOPCX0123456789", "аеорсхуАЕОРСХ٠١٢٣٤٥٦٧٨٩")
"""Cyrillic look-alikes of ASCII letters, and digits of another script."""
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """A row to validate: id, accepted answers and grader options; question and reference solution if known."""

    id: str
    golds: Golds
    options: dict[str, Any] = field(default_factory=dict)
    question: str = ""
    solution: str = ""


@dataclass(slots=True)
class Tally:
    """Counts of one kind of answer: tried, and misjudged, with the first few examples."""

    tried: int = 0
    mistaken: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, mistaken: bool, what: str) -> None:
        """Count one answer, described by `what`."""
        self.tried += 1
        self.mistaken += mistaken
        if mistaken and len(self.examples) < _EXAMPLES:
            self.examples.append(what[:300])


@dataclass(frozen=True, slots=True)
class Validation:
    """Counts of right answers, of each kind of wrong answers, and of rows that cannot be judged."""

    gold: Tally
    negatives: dict[str, Tally]
    unjudged: Tally

    @property
    def proven(self) -> bool:
        """Whether every row can be judged, every right answer passed and no wrong one did."""
        return self.gold.tried > 0 and not (
            self.gold.mistaken or self.unjudged.mistaken or any(t.mistaken for t in self.negatives.values())
        )


def validate(grader: Grader, subjects: Sequence[Subject]) -> Validation:
    """Test the right and the wrong answers of every row."""
    found = Validation(Tally(), {}, Tally())
    for place, subject in enumerate(subjects):
        other = subjects[(place + 1) % len(subjects)]
        _validate_one(grader, subject, other, found)
    return found


def _validate_one(grader: Grader, subject: Subject, other: Subject, found: Validation) -> None:
    try:
        answers = right_answers(grader, subject)
        for answer in answers:
            found.gold.note(not grader.judge(answer, subject.golds, subject.options)[1], f"{subject.id}: {answer!r}")
        found.unjudged.note(False, "")
        for sort, wrong in wrong_answers(grader, subject, other):
            tally = found.negatives.setdefault(sort, Tally())
            tally.note(grader.judge(wrong, subject.golds, subject.options)[1], f"{subject.id}: {wrong!r} for {answers[0]!r}")
    except ValueError as error:
        found.unjudged.note(True, f"{subject.id}: {error}")


def why_not_proven(grader: Grader, subject: Subject, other: Subject) -> str | None:
    """Return why a task is not admitted (a right answer fails, or an empty one or every wrong one passes), or None.

    Code without a reference solution has no right answer to test, but its tests must still reject a wrong program.

    Raises:
        ValueError: The verifier cannot judge it.
    """
    for answer in right_answers(grader, subject) if grader.name != "code" or subject.solution else ():
        if not grader.judge(answer, subject.golds, subject.options)[1]:
            return f"{'the reference solution' if grader.name == 'code' else f'its own accepted answer {answer!r:.80}'} does not pass"
    passed = []
    for sort, wrong in wrong_answers(grader, subject, other):
        if not grader.judge(wrong, subject.golds, subject.options)[1]:
            if sort != "empty":
                return None
        elif sort == "empty":
            return "an empty answer passes"
        else:
            passed.append(wrong)
        if grader.name == "code":
            return None
    return f"every wrong answer passes, such as {passed[0]!r:.80}" if passed else None


def right_answers(grader: Grader, subject: Subject) -> list[str]:
    """Answers that must pass: each accepted one; all of a set together, in either order; for code the reference solution.

    Raises ValueError for code without one.
    """
    if grader.name == "code":
        if not subject.solution:
            raise ValueError("there is no reference solution to check the tests with")
        return [subject.solution]
    names = [gold if isinstance(gold, str) else gold[0] for gold in subject.golds]
    if _is_set(grader, subject):
        return [join_items(names), join_items(names[::-1])]
    return names


def wrong_answers(grader: Grader, subject: Subject, other: Subject) -> Iterator[tuple[str, str]]:
    """Yield wrong answers for `subject`, each with its kind; `other` is another row, whose answer is one of them."""
    if grader.name == "code":
        yield from _wrong_programs(subject, other)
        return
    gold, another = _final(grader, right_answers(grader, subject)[0]), _final(grader, right_answers(grader, other)[0])
    apart = not _may_be_right(another, grader, subject)
    loose = bool(set(subject.options) - {"set"})  # with a tolerance or a coarser granularity, a near value may be right
    candidates = {
        "empty": " ",
        "denied": f"not {gold}",
        "second answer's tags": f"{another}</answer><answer>{gold}",
        "look-alikes": gold.translate(_ALIKE),
        "near miss": "" if loose else near_miss(gold),
        "question": "" if _may_be_right(subject.question, grader, subject) else subject.question,
        "another row's": another if apart and not loose else "",
        "choice": f"{gold} or {another}" if apart else "",
        "list": f"{gold}; {another}" if apart else "",
    }
    for sort, text in candidates.items():
        if text and _bare(text) not in _accepted(grader, subject):
            yield sort, text


def _wrong_programs(subject: Subject, other: Subject) -> Iterator[tuple[str, str]]:
    yield "empty", " "
    yield "ends early", "import os\nos._exit(0)\n"
    if other.solution and _bare(other.solution) != _bare(subject.solution):
        yield "another row's", other.solution


def near_miss(text: str) -> str:
    """Change the last digit of a text, or without digits its last letter."""
    places = [place for place, sign in enumerate(text) if sign in "0123456789"] or [p for p, sign in enumerate(text) if sign.isalpha()]
    if not places:
        return f"{text}x"
    place = places[-1]
    moved = str((int(text[place]) + 1) % 10) if text[place] in "0123456789" else "q" if text[place] != "q" else "z"
    return text[:place] + moved + text[place + 1 :]


def _final(grader: Grader, answer: str) -> str:
    """The answer without its derivation."""
    if grader.name == "gsm8k":
        number = final_number(answer)
        return answer if number is None else f"{number:f}"
    return (final_expression(answer) or answer) if grader.name == "math" else answer


def _accepted(grader: Grader, subject: Subject) -> set[str]:
    names = [name for gold in subject.golds for name in ([gold] if isinstance(gold, str) else gold)] + right_answers(grader, subject)
    return {_bare(name) for name in names} | {_bare(_final(grader, name)) for name in names}


def _may_be_right(text: str, grader: Grader, subject: Subject) -> bool:
    """Return whether an unrelated answer could be right: same final digits, same number, or same year of a date."""
    names = [_final(grader, name) for name in right_answers(grader, subject)]
    if _bare(text) in _accepted(grader, subject):
        return True
    if grader.name not in ("gsm8k", "number", "math", "date"):
        return False
    same_figures = any(_figures(text)[-1:] == _figures(name)[-1:] != [] for name in names)
    same_value = measure(text) is not None and any(measure(text) == measure(name) for name in names)
    dates = [date.year for name in (text, *names) if (date := read_date(name))]
    return same_figures or same_value or (grader.name == "date" and len(set(dates)) < len(dates))


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _figures(text: str) -> list[Fraction]:
    return [Fraction(number) for number in re.findall(r"[0-9]{1,50}(?:\.[0-9]{1,50})?", text.replace(",", ""))]


def _is_set(grader: Grader, subject: Subject) -> bool:
    return grader.name == "set" or subject.options.get("set") is True


def subject_of(task: Task, grader: Grader) -> Subject:
    return Subject(task.key, task.answers, options_of(task, grader), task.question, str(task.proofs.get("solution", "")))


ENOUGH = 1_000
"""Number of tasks of a large suite."""
MARGIN = 0.01
"""A suite is saturated if the best policy's interval comes this close to 0 or 1."""
_SENTENCE = re.compile(r"[A-Z][^.!?]{20,}\.")


class TraitState(StrEnum):
    KEPT = "kept"
    NOT_KEPT = "not kept"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Trait:
    """One trait of a suite, with the reason for its state."""

    name: str
    state: TraitState
    reason: str


def size(tasks: int) -> Trait:
    """Kept with at least `ENOUGH` tasks; the reason gives the difference that the suite can detect."""
    found = detectable_difference(tasks) if tasks else None
    shown = "no difference at all" if found is None else f"a difference of {100 * found:.1f} points"
    reason = f"{tasks} tasks detect {shown} between two policies in 80 % of cases, if half of the tasks are solved by only one of them"
    return _trait("size", tasks >= ENOUGH, reason)


def label_quality(found: Validation | None) -> Trait:
    """Every right answer passes, and every task can be judged."""
    if found is None:
        return _trait("label quality", None, "the tasks were not validated")
    wrong, unjudged = found.gold.mistaken, found.unjudged.mistaken
    first = next(iter((*found.gold.examples, *found.unjudged.examples)), None)
    reason = f"{found.gold.tried - wrong} of {found.gold.tried} right answers pass, {unjudged} tasks cannot be judged"
    kept = found.gold.tried > 0 and not wrong and not unjudged
    return _trait("label quality", kept, reason + (f"; the first: {first}" if first else ""))


def one_headline(name: str, figure: Figure | None, objection: str | None) -> Trait:
    """One figure to quote, available from the stored attempts."""
    if figure is None:
        return _trait("one headline figure", None, f"{name}; no policy has been evaluated on it here")
    if objection is not None or figure.estimate is None:
        unjudged = "too many tasks have fewer judged attempts than the figure needs"
        return _trait("one headline figure", False, f"{name}, but there is no result: {objection or unjudged}")
    value = figure.estimate
    return _trait("one headline figure", True, f"{name} = {value.value:.3f} ({value.low:.3f} to {value.high:.3f})")


def one_command(command: str, drawn: str, stored: str | None) -> Trait:
    """One command reproduces the tasks: their digest is that of the last run."""
    if stored is None:
        return _trait("one command", None, f"{command}; it has not been run here")
    same = drawn == stored
    return _trait("one command", same, command if same else f"{command} now draws other tasks ({drawn}) than were evaluated ({stored})")


def meaning(text: str) -> Trait:
    """One sentence says what the figure means."""
    kept = _SENTENCE.fullmatch(text.strip()) is not None
    return _trait("meaning", kept, text.strip() if kept else f"not one whole sentence: {text.strip()!r}")


def grading(found: Validation | None) -> Trait:
    """No answer known to be wrong passes."""
    if found is None:
        return _trait("grading checked", None, "the tasks were not validated")
    tried = sum(tally.tried for tally in found.negatives.values())
    taken = {sort: tally.mistaken for sort, tally in found.negatives.items() if tally.mistaken}
    first = next((example for tally in found.negatives.values() for example in tally.examples), None)
    reason = f"{tried} wrong answers of {len(found.negatives)} sorts tried, {sum(taken.values())} passed"
    kept = False if taken else True if tried else None
    return _trait("grading checked", kept, reason + (f" ({', '.join(taken)}); the first: {first}" if taken else ""))


def not_saturated(best: str | None, figure: Figure | None) -> Trait:
    """The best policy's interval keeps clear of 0 and of 1."""
    if best is None or figure is None or figure.estimate is None:
        return _trait("not saturated", None, "no policy has a result on it here")
    value = figure.estimate
    about = f"the best policy here, {best}, has {value.value:.3f} ({value.low:.3f} to {value.high:.3f})"
    if value.high > 1 - MARGIN:
        return _trait("not saturated", False, f"{about}: nothing is left to gain")
    if value.low < MARGIN:
        return _trait("not saturated", False, f"{about}: the suite does not distinguish such policies from one that knows nothing")
    return _trait("not saturated", True, about)


def _trait(name: str, kept: bool | None, reason: str) -> Trait:
    return Trait(name, TraitState.NOT_KNOWN if kept is None else TraitState.KEPT if kept else TraitState.NOT_KEPT, reason)
