"""Configuration of a run (`FlywheelConfig`), composed of the packages' sections. A profile is a TOML file; `--set KEY=VALUE` overrides it.

Unknown keys, invalid combinations and missing files are rejected before anything starts, with one sentence that names the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, ValidationError, field_validator, model_validator

from eval.graders.choice import JUDGE
from flows.evaluation_config import AsyncEvaluationConfig, EvaluationConfig
from flows.operations_config import AttemptConfig, BudgetConfig, EventsConfig
from flows.overrides import apply_overrides, describe, lay_over
from rl.curriculum import CurriculumConfig
from rl.learner.config import ReinforceConfig
from rl.policies.config import PolicyConfig
from rl.rollouts.config import RolloutConfig, check_rollouts
from rl.supervised.config import CptConfig, SftConfig, check_first
from synth.config import CorpusConfig, SynthConfig
from synth.teachers.config import TeacherConfig
from warehouse.errors import RequestError
from warehouse.settings import Section, fault_of, read_toml
from warehouse.storage import LOCAL, Storage

PROFILES = Path(__file__).resolve().parent.parent / "profiles"


class ReinforceSection(ReinforceConfig):
    """Reinforcement learning with its tasks and horizon curriculum."""

    tasks: str = "split = 'train'"
    """SQL condition on the table `tasks` that selects the training tasks; it must not match a suite's task."""
    horizon: CurriculumConfig = CurriculumConfig()
    evaluate: AsyncEvaluationConfig | None = None


TrainingStage = Literal["cpt", "sft", "rl"]
TRAINING: tuple[TrainingStage, ...] = ("cpt", "sft", "rl")
"""Training stages, in order."""


class WheelConfig(Section):
    """The stages of an iteration."""

    stages: tuple[TrainingStage, ...] = Field(default=TRAINING, min_length=1)
    """Training stages to run, in order; data for other stages is not made. `["rl"]` alone is zero-RL."""

    @field_validator("stages")
    @classmethod
    def _check_order(cls, stages: tuple[str, ...]) -> tuple[str, ...]:
        if list(stages) != [stage for stage in TRAINING if stage in stages]:
            raise ValueError(f"stages are {list(stages)}; list each at most once, in the order {', '.join(TRAINING)}")
        return stages


class TurnConfig(Section):
    """The stages of one iteration. `later` overrides them from the second iteration on."""

    wheel: WheelConfig = WheelConfig()
    synth: SynthConfig = SynthConfig()
    cpt: CptConfig = CptConfig()
    sft: SftConfig = SftConfig()
    rl: ReinforceSection = ReinforceSection()

    @model_validator(mode="after")
    def _check_cold_start(self) -> Self:
        if "teacher" in self.sft.sources and self.synth.model_teacher is None:
            raise ValueError("sft.from names a teacher, but none is configured: set synth.teacher.kind to openai or engine")
        return self


class FlywheelConfig(TurnConfig):
    """The whole run."""

    seed: NonNegativeInt = 0
    """Random seed."""
    corpus: CorpusConfig = CorpusConfig()
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    lake: Storage = LOCAL
    later: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `wheel`, `synth`, `cpt`, `sft` and `rl` from the second iteration on."""
    budget: BudgetConfig = BudgetConfig()
    attempts: AttemptConfig = AttemptConfig()
    events: EventsConfig = EventsConfig()

    def for_turn(self, turn: int) -> TurnConfig:
        """Return the settings of an iteration (counted from 1), with `later` applied from the second on."""
        first = self.model_dump(include=set(TurnConfig.model_fields))
        return TurnConfig.model_validate(first if turn == 1 else lay_over(first, self.later))

    def async_evaluation(self, turn: int) -> AsyncEvaluationConfig | None:
        """Return the evaluation during an iteration's RL with its suites named; the default suites are those of the gate."""
        wanted = self.for_turn(turn).rl.evaluate
        return wanted and wanted.model_copy(update={"suites": wanted.suites or tuple(self.evaluation.gate)})

    @property
    def asks_judge(self) -> str | None:
        """Return the first key that needs the judge during rollouts, if any."""
        if self.evaluation.verifier == JUDGE:
            return "evaluation.verifier"
        rewards = [self.for_turn(turn).rl.rewards for turn in (1, 2)]
        if any(one.verifier == JUDGE for one in rewards):
            return "rl.rewards.verifier"
        return "rl.rewards.parts.turn_judge" if any(one.judges_turns for one in rewards) else None

    @model_validator(mode="after")
    def _check_sections(self) -> FlywheelConfig:
        """Check what spans several sections."""
        try:
            turns = [self.for_turn(turn) for turn in (1, 2)]
        except ValidationError as error:
            raise ValueError(f"in later, {fault_of(error, 'the settings')}") from error
        self.synth.check_first(self.policy.path)
        check_first(self.cpt, self.sft)
        if not self.corpus.trains_on_facts:
            self.synth.check_documents("sft" in self.wheel.stages and "oracle" in self.sft.sources)
        self.rollout.engine.check_adapters(any(turn.rl.lora is not None for turn in turns))
        for number, turn in enumerate(turns, start=1):
            check_rollouts(turn.rl, self.rollout)
            turn.synth.check_search(self.rollout.search)
            self.evaluation.check_tool_worlds(turn.synth.tool_worlds)
            self.evaluation.check_async(self.async_evaluation(number))
        self.evaluation.check_judge(self.asks_judge)
        self._check_prices(turns)
        return self

    def _check_prices(self, turns: Sequence[TurnConfig]) -> None:
        """Raise ValueError if dollars are limited, and a model on a server has no prices: its cost would be unknown."""
        if self.budget.usd is None:
            return
        asked = {"evaluation.judge": self.evaluation.judge}
        asked |= {f"synth.{name}": getattr(turn.synth, name) for turn in turns for name in ("teacher", "judge")}
        for key, teacher in asked.items():
            if teacher is not None and teacher.kind == "openai" and teacher.usd_per_million is None:
                raise ValueError(f"budget.usd needs the prices of {key}: set {key}.usd_per_million = [PROMPT, COMPLETION]")


TEACHER = "teacher"
"""Replaces a policy's id where the teacher acts."""


def playing_teacher(config: FlywheelConfig) -> TeacherConfig:
    """Return the teacher that acts in environments. Raise RequestError if there is none."""
    if config.synth.model_teacher is None:
        raise RequestError(f"--policy {TEACHER} needs a teacher that is a model: set synth.teacher.kind to openai or engine.")
    return config.synth.model_teacher


def load_config(profile: str, overrides: Sequence[str] = ()) -> FlywheelConfig:
    """Load a profile by name or path with `overrides` applied. Raise RequestError if it is missing or a key or value is invalid."""
    path = Path(profile) if profile.endswith(".toml") else PROFILES / f"{profile}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.toml")))
        raise RequestError(f"there is no profile {profile!r}; choose one of {known}, or the path of a TOML file.")
    try:
        return FlywheelConfig.model_validate(read_table(path, overrides))
    except ValidationError as error:
        raise RequestError(describe(error, profile, overrides, FlywheelConfig)) from error


def read_table(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Read a TOML file with `overrides` applied. Raise RequestError if either is invalid."""
    return apply_overrides(read_toml(path), overrides)
