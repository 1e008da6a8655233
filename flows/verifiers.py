"""Verifiers by name: those of the record, the unsupervised ones, and the judge, which has to be opened and to show what it can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eval.judges import Judge, calibrate, refuse_unfit
from eval.outcome import VERIFIERS
from eval.unsupervised import Agreement, Confidence
from eval.verifier import BatchVerifier, Verifier
from synth.teachers.config import TeacherConfig
from warehouse import Lake
from warehouse.errors import RequestError

JUDGE = "judge"
_UNSUPERVISED: dict[str, BatchVerifier] = {verifier.name: verifier for verifier in (Agreement(), Confidence())}
NAMES = (*VERIFIERS, JUDGE, *_UNSUPERVISED)
"""Every verifier that `flywheel reverify` takes."""


@contextmanager
def open_verifier(name: str, judge: TeacherConfig | None, lake: Lake) -> Iterator[Verifier | BatchVerifier]:
    """The verifier of a name; the judge is calibrated first, and what it said of every labelled pair is kept in `checks`.

    Raises:
        RequestError: there is no such verifier, no model for the judge, or the judge is not fit to judge.
    """
    if name == JUDGE:
        with open_judge(judge, lake) as opened:
            yield opened
    elif name in NAMES:
        yield _UNSUPERVISED.get(name) or VERIFIERS[name]
    else:
        raise RequestError(f"there is no verifier {name!r}; choose one of {', '.join(NAMES)}.")


@contextmanager
def open_judge(config: TeacherConfig | None, lake: Lake) -> Iterator[Judge]:
    """The judge over the configured model, after its calibration. Raises RequestError where it is not fit to judge."""
    from synth.teachers.opening import open_teacher

    if config is None:
        raise RequestError("the verifier judge needs a model: set evaluation.judge.kind to openai or engine, and its model.")
    with open_teacher(config, lake) as teacher:
        judge = Judge(teacher)
        calibration = calibrate(judge)
        lake.replace(calibration.checks)
        refuse_unfit(judge, calibration)
        yield judge
