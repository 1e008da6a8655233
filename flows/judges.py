"""A home's judges: the model under `evaluation.judge`, opened on first use and used only if it passes calibration.

Verdicts on the labelled cases are stored in `checks`. The lake caches all verdicts as completions, so a home calibrates only once.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property

from eval.judges import ANSWERS, TURNS, Judge, JudgePrompt, calibrate, refuse_unfit
from synth.teachers.config import TeacherConfig
from synth.teachers.teacher import Teacher
from warehouse import Lake
from warehouse.errors import RequestError

NEEDS_MODEL = "a judge is required but has no model: set evaluation.judge.kind = openai, and its model and base_url."
NEEDS_SERVER = (
    "evaluation.judge.kind = engine can only judge stored trajectories (`flywheel reverify`): rollout engines occupy the machine; serve "
    "the model (`vllm serve`) and set kind = openai."
)


def check_judge(config: TeacherConfig | None) -> None:
    """Raise RequestError if no model is configured that can judge while rollouts run."""
    if config is None:
        raise RequestError(NEEDS_MODEL)
    if config.kind == "engine":
        raise RequestError(NEEDS_SERVER)


class HomeJudges:
    """Judges that share one model. Each property raises RequestError without a model or if calibration fails."""

    def __init__(self, config: TeacherConfig | None, lake: Lake) -> None:
        self._config, self._lake = config, lake
        self._opened = ExitStack()

    @cached_property
    def of_answers(self) -> Judge:
        return self._calibrated(ANSWERS)

    @cached_property
    def of_turns(self) -> Judge:
        return self._calibrated(TURNS)

    def close(self) -> None:
        self._opened.close()

    def _calibrated(self, prompt: JudgePrompt) -> Judge:
        judge = Judge(self._model, prompt)
        calibration = calibrate(judge)
        self._lake.replace(calibration.checks)
        refuse_unfit(judge, calibration)
        return judge

    @cached_property
    def _model(self) -> Teacher:
        from synth.teachers.model_teacher import open_teacher

        if self._config is None:
            raise RequestError(NEEDS_MODEL)
        return self._opened.enter_context(open_teacher(self._config, self._lake))
