"""The judges of a home: the model under `evaluation.judge`, opened when first asked for, and used once it has shown that it can judge.

What a judge said of each labelled case is kept in `checks`. What it said of anything is kept in the lake like every completion, so that a
home pays for its calibration once.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property

from eval.judges import Judge, calibrate, refuse_unfit
from eval.turn_judges import ENOUGH, TurnJudge, calibrate_turns
from synth.teachers.config import TeacherConfig
from synth.teachers.teacher import Teacher
from warehouse import Lake
from warehouse.errors import RequestError

NEEDS_MODEL = "a judge is asked for and has no model: set evaluation.judge.kind = openai, and its model and base_url."
NEEDS_SERVER = (
    "evaluation.judge.kind = engine judges what is stored (`flywheel reverify`): while rollouts run, their engines have the machine; serve "
    "the model (`vllm serve`) and set kind = openai."
)


def check_judge(config: TeacherConfig | None) -> None:
    """That there is a model which can judge while rollouts run. Raises RequestError where there is none."""
    if config is None:
        raise RequestError(NEEDS_MODEL)
    if config.kind == "engine":
        raise RequestError(NEEDS_SERVER)


class HomeJudges:
    """The judges over one model, which is opened once for both."""

    def __init__(self, config: TeacherConfig | None, lake: Lake) -> None:
        self._config, self._lake = config, lake
        self._opened = ExitStack()

    @cached_property
    def of_answers(self) -> Judge:
        """The judge of answers, calibrated. Raises RequestError where there is no model, or where it is not fit to judge."""
        judge = Judge(self._model)
        calibration = calibrate(judge)
        self._lake.replace(calibration.checks)
        refuse_unfit(judge.name, calibration)
        return judge

    @cached_property
    def of_turns(self) -> TurnJudge:
        """The judge of single turns, calibrated. Raises RequestError as `of_answers` does."""
        judge = TurnJudge(self._model)
        calibration = calibrate_turns(judge)
        self._lake.replace(calibration.checks)
        refuse_unfit(judge.name, calibration, ENOUGH)
        return judge

    def close(self) -> None:
        """Let go of the model."""
        self._opened.close()

    @cached_property
    def _model(self) -> Teacher:
        from synth.teachers.model_teacher import open_teacher

        if self._config is None:
            raise RequestError(NEEDS_MODEL)
        return self._opened.enter_context(open_teacher(self._config, self._lake))
