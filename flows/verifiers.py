"""Verifiers by name, of which the judge has to be opened and calibrated; and the proof that a verifier judges a task set rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from eval.graders.base import BatchVerifier, Verifier
from eval.graders.choice import JUDGE, Verifiers, find_verifier, grader_of, is_verifier, verifiers_of
from eval.graders.rows import read_rows
from eval.graders.unsupervised import Agreement, Confidence
from eval.graders.verifiers import GRADERS, VERIFIERS, Grader
from eval.judges import Judge
from eval.suites.validation import Subject, Tally, Validation, subject_of, validate
from flows.evaluation_config import EvaluationConfig
from flows.home import Home
from flows.inputs import bringing_tasks
from flows.judges import HomeJudges
from flows.lakes import open_lake
from synth.teachers.config import TeacherConfig
from warehouse import Lake, Task
from warehouse.errors import RequestError

_UNSUPERVISED: dict[str, Callable[[Verifiers], BatchVerifier]] = {
    Agreement().name: lambda verifiers: Agreement(verifiers=verifiers),
    Confidence().name: lambda verifiers: Confidence(),
}
NAMES = (*VERIFIERS, JUDGE, *_UNSUPERVISED)
"""Every verifier that `flywheel reverify` takes."""


@contextmanager
def open_verifier(name: str, settings: EvaluationConfig, lake: Lake) -> Iterator[Verifier | BatchVerifier]:
    """The verifier of a name; the judge is calibrated first, and its verdict on every labelled pair is kept in `checks`.

    Agreement goes by what the home's own verifiers read in the answers.

    Raises:
        RequestError: there is no such verifier, no model for the judge, or the judge is not fit to judge.
    """
    if name == JUDGE:
        with open_judge(settings.judge, lake) as opened:
            yield opened
    elif name in _UNSUPERVISED:
        yield _UNSUPERVISED[name](settings.open_verifiers())
    elif is_verifier(name):
        yield find_verifier(name)
    else:
        raise RequestError(f"there is no verifier {name!r}; choose one of {', '.join(NAMES)}, or name your own as file.py:attribute.")


@contextmanager
def open_judge(config: TeacherConfig | None, lake: Lake) -> Iterator[Judge]:
    """The judge over the configured model, after its calibration. Raises RequestError where it is not fit to judge."""
    with closing(HomeJudges(config, lake)) as judges:
        yield judges.of_answers


def validate_rows(kind: str, path: Path) -> Validation:
    """Prove the rows `{id, gold, options?, question?}` of a file; one that is broken is a row that cannot be judged."""
    subjects: list[Subject] = []
    broken = Tally()
    for number, row in enumerate(read_rows(path), start=1):
        try:
            subjects.append(_subject(row))
        except ValueError as error:
            broken.note(True, f"row {number}: {error}")
    return _together([validate(kind_of(kind), subjects), Validation(Tally(), {}, broken)])


def validate_home(home: Path, suite: str | None, kind: str | None) -> Validation:
    """Prove the tasks of a home, or of one of its splits, by `kind`, or each by its own verifier.

    Raises:
        RequestError: there are no such tasks, or no such kind.
    """
    verifiers = Home(home).load().evaluation.open_verifiers() if Home(home).config_file.is_file() else verifiers_of("qa_em")
    with open_lake(home) as lake:
        tasks = lake.tasks(split=suite)
    if not tasks:
        where = f" in the split {suite!r}" if suite else ""
        raise RequestError(f"{home} has no tasks{where} yet: {bringing_tasks(home, suite or 'train')}.")
    return validate_tasks(tasks, verifiers, kind)


def validate_tasks(tasks: Sequence[Task], verifiers: Verifiers, kind: str | None = None) -> Validation:
    """Prove tasks by `kind`, or each by the one of `verifiers` that it names or else by their default."""
    if kind is not None:
        return _validate_group(kind, _judging(kind), tasks)
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(verifiers.of(task).name, []).append(task)
    return _together([_validate_group(name, grader_of(verifiers.of(group[0])), group) for name, group in groups.items()])


def kind_of(name: str) -> Grader:
    """The kind of a name. Raises RequestError, naming those that there are."""
    grader = _judging(name) if name in GRADERS or ":" in name else None
    if grader is None:
        raise RequestError(
            f"There is no verifier {name!r} of answers: choose one of {', '.join(GRADERS)}, or file.py:attribute of a Grader."
        )
    return grader


def _judging(name: str) -> Grader | None:
    """The rule of the verifier of that name; None where it looks at no answer. Raises RequestError where there is no such verifier."""
    return grader_of(find_verifier(name))


def _validate_group(name: str, grader: Grader | None, tasks: Sequence[Task]) -> Validation:
    """Tasks of one verifier; where that one looks at no answer there is none to try, and nothing is proven."""
    if grader is None:
        unjudged = Tally()
        for task in tasks:
            unjudged.note(True, f"{task.key}: the verifier {name} looks at no answer")
        return Validation(Tally(), {}, unjudged)
    return validate(grader, [subject_of(task, grader) for task in tasks])


def _subject(row: Any) -> Subject:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping) or "gold" not in row:
        raise ValueError("it is no object with a gold")
    gold, options, question = row["gold"], row.get("options") or {}, row.get("question") or ""
    golds = [
        str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for item in (gold if isinstance(gold, list) else [gold])
    ]
    if not all(
        isinstance(item, str) or (isinstance(item, list) and item and all(isinstance(name, str) for name in item)) for item in golds
    ):
        raise ValueError("gold holds something that is no text")
    if not isinstance(options, dict) or not isinstance(question, str) or not golds:
        raise ValueError("options, question or gold cannot be read")
    return Subject(str(row.get("id")), golds, options, question)


def _together(found: list[Validation]) -> Validation:
    """The tallies of several validations added up."""
    gold, unjudged = Tally(), Tally()
    negatives: dict[str, Tally] = {}
    for one in found:
        gold, unjudged = _sum(gold, one.gold), _sum(unjudged, one.unjudged)
        for sort, tally in one.negatives.items():
            negatives[sort] = _sum(negatives.get(sort, Tally()), tally)
    return Validation(gold, negatives, unjudged)


def _sum(one: Tally, other: Tally) -> Tally:
    return Tally(one.tried + other.tried, one.mistaken + other.mistaken, one.examples + other.examples)
