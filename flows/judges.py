"""The judges of a home: the model under `evaluation.judge`, opened when first asked for, and used once it has shown that it can judge.

What a judge said of each labelled case is kept in `checks`. What it said of anything is kept in the lake like every completion, so that a
home pays for its calibration once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property

from eval.judges import ENOUGH, Calibration, Judge, calibrate, refuse_unfit
from eval.turn_judges import ENOUGH as ENOUGH_TURNS
from eval.turn_judges import TurnJudge, calibrate_turns
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
        self._admit(judge.name, calibrate(judge), ENOUGH)
        return judge

    @cached_property
    def of_turns(self) -> TurnJudge:
        """The judge of single turns, calibrated. Raises RequestError as `of_answers` does."""
        judge = TurnJudge(self._model)
        self._admit(judge.name, calibrate_turns(judge), ENOUGH_TURNS)
        return judge

    def close(self) -> None:
        """Let go of the model."""
        self._opened.close()

    def _admit(self, name: str, calibration: Calibration, enough: Mapping[str, float]) -> None:
        """Keep what was said of the labelled cases, and refuse who is not fit."""
        self._lake.replace(calibration.checks)
        refuse_unfit(name, calibration, enough)

    @cached_property
    def _model(self) -> Teacher:
        from synth.teachers.model_teacher import open_teacher

        if self._config is None:
            raise RequestError(NEEDS_MODEL)
        return self._opened.enter_context(open_teacher(self._config, self._lake))
