"""Settings of evaluation: suites, gate, verifiers and judge."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, PositiveInt, model_validator

from eval.graders.base import Verifier
from eval.graders.choice import Verifiers, is_verifier, unknown, verifiers_of
from synth.questions.builder import QuestionConfig
from synth.teachers.config import TeacherConfig
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse import TRAINED_SPLITS
from warehouse.settings import Section

SUITE_NAME = r"^[a-z0-9][a-z0-9_.-]{0,39}$"
RESERVED = (*TRAINED_SPLITS, "import")
"""Split names that no suite may use."""


class AsyncEvaluationConfig(Section):
    """Evaluation during RL, on the engines that sample for it."""

    every: PositiveInt
    """Training steps between evaluations."""
    suites: tuple[str, ...] = ()
    """Suites to run; empty: those of the gate. Never select checkpoints or hyperparameters on a reported suite."""
    tasks: PositiveInt | None = 100
    """Tasks per suite, sampled once; None: all."""
    at_once: PositiveInt = 8
    """Maximum concurrent evaluation trajectories, within `rollout.concurrency`."""


class EvaluationConfig(Section):
    """Suites of held-out tasks and the conditions for promotion."""

    suites: dict[str, QuestionConfig] = Field(default_factory=lambda: {"held_out": QuestionConfig()})
    gate: dict[str, QuestionConfig] = Field(default_factory=dict)
    horizon: PositiveInt = 7
    """Maximum turns of an evaluated policy."""
    largest_fall: float = Field(default=0.02, ge=0, le=1)
    """Maximum drop in success rate of a candidate on any suite."""
    largest_p_value: float = Field(default=0.05, gt=0, le=1)
    """Maximum p-value of the paired test that the candidate is better."""
    verifier: str = "qa_em"
    """Default verifier: a kind of `flywheel verify`, `state`, `state_strict`, `environment`, `judge`, a key of `verifiers`, or
    `module:attribute`.
    """
    verifiers: dict[str, str] = Field(default_factory=dict)
    """Custom verifiers by name, each `module:attribute` or `file.py:attribute`."""
    judge: TeacherConfig | None = None

    def open_verifiers(
        self, default: str | None = None, listed: Mapping[str, str] | None = None, judge: Verifier | None = None
    ) -> Verifiers:
        """Open the home's verifiers with the default `default`, the additional `listed` ones, and an opened `judge`."""
        return verifiers_of(default or self.verifier, {**self.verifiers, **(listed or {})}, judge)

    @property
    def all_suites(self) -> dict[str, QuestionConfig]:
        """All suites, reported ones and those of the gate. Training excludes both."""
        return {**self.suites, **self.gate}

    def setting_of(self, suite: str) -> str:
        """The configuration key of a suite."""
        return f"evaluation.{'gate' if suite in self.gate else 'suites'}.{suite}"

    @model_validator(mode="after")
    def _check_names(self) -> EvaluationConfig:
        for name in self.all_suites:
            if name in RESERVED or not re.fullmatch(SUITE_NAME, name):
                taken = ", ".join(RESERVED)
                raise ValueError(f"{name!r} is not a valid suite name: use up to 40 of a to z, 0 to 9 and _ . -, and none of {taken}")
        if both := sorted(self.suites.keys() & self.gate.keys()):
            raise ValueError(f"{both[0]} is in both suites and gate: the gate must not decide on a reported suite")
        return self

    @model_validator(mode="after")
    def _check_verifier(self) -> EvaluationConfig:
        if not is_verifier(self.verifier, self.verifiers):
            raise ValueError(f"verifier: {unknown(self.verifier, self.verifiers)}")
        if taken := sorted(name for name in self.verifiers if is_verifier(name)):
            raise ValueError(f"verifiers: {taken[0]!r} is the name of another verifier; choose another name")
        if self.judge is not None and not self.judge.is_model:
            raise ValueError("judge.kind must be openai or engine: the graph's oracle cannot judge")
        return self

    def check_judge(self, asking: str | None) -> None:
        """Raise ValueError if the key `asking` needs a judge during rollouts and no judge server is configured."""
        if asking is None:
            return
        if self.judge is None:
            raise ValueError(f"{asking} needs evaluation.judge: set evaluation.judge.kind = openai, and its model")
        if self.judge.kind == "engine":
            raise ValueError(
                f"evaluation.judge.kind = engine can only judge stored trajectories, and {asking} needs a judge during rollouts: "
                "serve the model (vllm serve) and set evaluation.judge.kind = openai"
            )

    def check_tool_worlds(self, wanted: WrittenWorldsConfig | None) -> None:
        """Raise ValueError if held-out tasks of written worlds go to an unknown suite."""
        if wanted is not None and wanted.held_out and wanted.suite not in self.all_suites:
            raise ValueError(f"synth.tool_worlds.suite = {wanted.suite} is not one of the home's suites: {', '.join(self.all_suites)}")

    def check_async(self, wanted: AsyncEvaluationConfig | None) -> None:
        """Raise ValueError if evaluation during RL has no suite, an unknown suite, or a duplicate."""
        if wanted is None:
            return
        if not wanted.suites:
            raise ValueError("rl.evaluate has no suite to run: set rl.evaluate.suites, or add suites for the gate under evaluation.gate")
        if missing := next((name for name in wanted.suites if name not in self.all_suites), None):
            raise ValueError(f"rl.evaluate.suites lists {missing!r}, which is not one of the home's suites: {', '.join(self.all_suites)}")
        if len(set(wanted.suites)) < len(wanted.suites):
            raise ValueError("rl.evaluate.suites lists a suite twice")
