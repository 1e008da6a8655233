"""The whole configuration: each stage's own model, composed. A profile is a TOML file, over which `--set KEY=VALUE` is laid.

Unknown keys, impossible combinations and missing files are refused here, before anything starts, in one sentence that names
the key. Everything random follows from `seed`. What differs from the second turn on stands under `later`, in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator

from eval.graders.base import Verifier
from eval.graders.choice import JUDGE, Verifiers, is_verifier, unknown, verifiers_of
from flows.operations.config import AttemptConfig, BudgetConfig, EventsConfig
from flows.overrides import apply_overrides, describe, lay_over
from rl.curriculum import CurriculumConfig
from rl.engines.config import CUDA_TRANSFERS
from rl.learner.config import ReinforceConfig
from rl.policies.config import PolicyConfig
from rl.rollouts.config import RolloutConfig
from rl.supervised.config import CptConfig, SftConfig
from synth.corpora.config import ExpanderConfig, ExtractionConfig, SeedsConfig
from synth.demonstrations.cold_start import DemonstrationConfig
from synth.fas.reasoning import FasConfig
from synth.has.records import HasConfig
from synth.questions.config import QuestionConfig, TrainingQuestionConfig
from synth.questions.decontamination import DecontaminationConfig
from synth.questions.direct_attempts import DirectAttemptsConfig
from synth.questions.rewording import RewordingConfig
from synth.teachers.config import TeacherConfig
from synth.worlds.world import WorldConfig
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse import TRAINED_SPLITS
from warehouse.errors import RequestError
from warehouse.public_data.places import locate
from warehouse.settings import Section, fault_of, read_toml
from warehouse.storage import LOCAL, Storage

SUITE_NAME = r"^[a-z0-9][a-z0-9_.-]{0,39}$"
RESERVED = (*TRAINED_SPLITS, "import")
"""Splits that are no suites."""
PROFILES = Path(__file__).resolve().parent.parent / "profiles"


class CorpusConfig(Section):
    """Where facts and documents come from."""

    kind: Literal["generated", "films", "countries", "files", "pages"] = "generated"
    path: Path | None = None
    """Folder of the films, of the countries, of `facts.*` and `documents.jsonl`, or of pages: Markdown and text alone, without a fact.
    Without it films and countries are the public data sets of these names (`flywheel data list`); a generated world needs none."""
    longest_document: PositiveInt | None = None
    """Characters of a film's document at most, in whole sentences: as much as an observation can show."""
    wordings: Path | None = None
    """Of `files`: a TOML file that says how questions speak of relations in plain English; without it their names serve."""
    train: WorldConfig = WorldConfig()
    """The generated world that is trained on."""
    held_out: WorldConfig = WorldConfig()
    """The generated world of the suites: other names, other facts, other documents."""

    @model_validator(mode="after")
    def _check_path(self) -> CorpusConfig:
        if self.path is None and self.kind == "files":
            raise ValueError("path is needed for files: name the folder of facts.* and documents.jsonl")
        if self.path is None and self.kind == "pages":
            raise ValueError("path is needed for pages: name the folder of Markdown and text")
        if self.path is not None and self.kind == "generated":
            raise ValueError("path is for films, countries, files and pages; a generated world reads none")
        if self.kind != "generated" and not self.folder.is_dir():
            raise ValueError(f"path: there is no folder {self.path}; put the data there or name another folder")
        if self.wordings is not None and self.kind != "files":
            raise ValueError("wordings are for files; generated worlds, films and countries have their own")
        return self

    @property
    def folder(self) -> Path:
        """The folder that it is read from. Raises RequestError where a public data set is not here."""
        return locate(self.kind) if self.path is None else self.path


class SynthConfig(Section):
    """What is made from the graph for a turn."""

    webshaper: TrainingQuestionConfig = TrainingQuestionConfig()
    """The questions that RL draws its tasks from."""
    fas: FasConfig = FasConfig()
    has: HasConfig = HasConfig()
    has_count: NonNegativeInt = 1000
    """Trajectories of earlier turns that become decision records."""
    demonstrations: DemonstrationConfig = DemonstrationConfig()
    demonstration_questions: QuestionConfig = QuestionConfig()
    """The questions that the oracle demonstrates."""
    documents: NonNegativeInt = 1000
    """Documents of the training corpus that CPT reads as plain text."""
    rejection_samples: NonNegativeInt = 1000
    """Successful trajectories of earlier turns that join the cold start, the deeper ones first."""
    rewording: RewordingConfig | None = None
    """Have the teacher reword the questions that RL draws from, beside those that the templates word; None: no rewording."""
    seeds: SeedsConfig | None = None
    """Have the teacher make questions of the documents alone, beside those that the graph builds; None: nobody is asked."""
    expander: ExpanderConfig | None = None
    """Have the teacher make questions deeper by searching the documents, beside those that the graph builds; None: no expansion."""
    tool_worlds: WrittenWorldsConfig | None = None
    """Have the teacher write tool worlds of descriptions, with their tasks; None: nobody is asked."""
    direct_attempts: DirectAttemptsConfig | None = None
    """Drop the questions that a model answers without tools, whoever made them; None: nobody is asked."""
    extraction: ExtractionConfig = ExtractionConfig()
    """How `flywheel extract` has the teacher read facts out of plain text."""
    decontamination: DecontaminationConfig = DecontaminationConfig()
    teacher: TeacherConfig | None = None
    """Who plans (`fas.plans`), reasons (`fas.reasoner`), judges plans (`fas.judge`) and proposes actions (`has.mixture`) beside the graph.

    None is nobody."""
    batch: PositiveInt = 50_000
    """Questions or examples at most in one commit: what a killed synthesis may have to make again. Each batch has a seed of its own."""

    @model_validator(mode="after")
    def _check(self) -> SynthConfig:
        wanted = {"fas.plans": self.fas.plans == "teacher", "fas.reasoner": self.fas.reasoner == "teacher", "fas.judge": self.fas.judge}
        wanted |= {"fas.slice_reasoning": self.fas.slice_reasoning}
        wanted |= {"has.mixture": "teacher" in self.has.mixture}
        wanted |= {"rewording": self.rewording is not None, "expander": self.expander is not None, "seeds": self.seeds is not None}
        wanted |= {"direct_attempts": self.direct_attempts is not None and self.direct_attempts.by == "teacher"}
        wanted |= {"tool_worlds": self.tool_worlds is not None}
        asking = [key for key, asks in wanted.items() if asks]
        if asking and (self.teacher is None or not self.teacher.is_model):
            raise ValueError(f"teacher is needed, for {asking[0]} asks for one: set synth.teacher.kind to openai or engine")
        return self

    @property
    def asks_for_questions(self) -> bool:
        """Whether the teacher is asked where questions alone are made."""
        direct = self.direct_attempts is not None and self.direct_attempts.by == "teacher"
        return any(part is not None for part in (self.rewording, self.expander, self.seeds)) or direct

    def teacher_of(self, kind: str) -> TeacherConfig | None:
        """Who is asked where one kind of synthesis is made; None where nobody is."""
        return None if kind == "webshaper" and not self.asks_for_questions else self.teacher

    @property
    def makes_tasks(self) -> bool:
        """Whether it makes anything that RL could draw."""
        return bool(sum(self.webshaper.wanted().values())) or self.seeds is not None or self.tool_worlds is not None


class AsyncEvaluationConfig(Section):
    """Evaluation beside training: suites that the policy tries while it is being trained, on the engines that sample for it."""

    every: PositiveInt
    """Steps from one evaluation to the next."""
    suites: tuple[str, ...] = ()
    """Suites of the home; none is those of the gate. Of what a reported one shows here nothing may be chosen: its figures would no longer
    be those of tasks that had no part in training."""
    tasks: PositiveInt | None = 100
    """Tasks of each suite, drawn once by the seed and the same at every evaluation; None is all of them."""
    at_once: PositiveInt = 8
    """Trajectories of it side by side, among those of `rollout.concurrency`."""


class ReinforceSection(ReinforceConfig):
    """Policy optimisation and the curriculum over it."""

    tasks: str = "split = 'train'"
    """The tasks that it draws from: a SQL condition on the table `tasks`. It may meet no task of a suite."""
    horizon: CurriculumConfig = CurriculumConfig()
    evaluate: AsyncEvaluationConfig | None = None
    """Have the policy try suites while it is being trained; None: it is tried when it is done."""


class TurnConfig(Section):
    """What a turn of the wheel does; may differ from turn to turn."""

    synth: SynthConfig = SynthConfig()
    cpt: CptConfig = CptConfig()
    sft: SftConfig = SftConfig()
    rl: ReinforceSection = ReinforceSection()

    @model_validator(mode="after")
    def _check_cold_start(self) -> Self:
        teacher = self.synth.teacher
        if "teacher" in self.sft.sources and (teacher is None or not teacher.is_model):
            raise ValueError("sft.from names a teacher, and there is none that plays: set synth.teacher.kind to openai or engine")
        return self


TrainingStage = Literal["cpt", "sft", "rl"]
TRAINING: tuple[TrainingStage, ...] = ("cpt", "sft", "rl")
"""The stages of training, in their order."""


class WheelConfig(Section):
    """What the wheel is made of."""

    stages: tuple[TrainingStage, ...] = Field(default=TRAINING, min_length=1)
    """The stages of training of each turn, in order; `["rl"]` alone is zero-RL. What is left out is neither done nor made data for."""

    @field_validator("stages")
    @classmethod
    def _check_order(cls, stages: tuple[str, ...]) -> tuple[str, ...]:
        if list(stages) != [stage for stage in TRAINING if stage in stages]:
            raise ValueError(f"stages are {list(stages)}; name each once, in the order {', '.join(TRAINING)}")
        return stages


class EvaluationConfig(Section):
    """The suites of held-out tasks, and what a policy must show to be promoted."""

    suites: dict[str, QuestionConfig] = Field(default_factory=lambda: {"held_out": QuestionConfig()})
    """Those that are reported: every policy is tried on them."""
    gate: dict[str, QuestionConfig] = Field(default_factory=dict)
    """Those that the gate decides on, and nobody reports: the last policy of each turn is tried on them. Without any the gate decides on
    `suites`, and the figures of a promoted policy are then figures that it was chosen by."""
    horizon: PositiveInt = 7
    """Turns that an evaluated policy may take."""
    largest_fall: float = Field(default=0.02, ge=0, le=1)
    """A candidate that falls by more than this on any suite is not promoted."""
    largest_p_value: float = Field(default=0.05, gt=0, le=1)
    """Nor is one unless it solves more, and the paired test over the tasks of all suites gives at most this."""
    verifier: str = "qa_em"
    """Who judges trajectories, in evaluation and as RL's reward, where a task's provenance names no other: a kind of `flywheel verify`,
    `state`, `state_strict` or `environment`, `judge`, one of `verifiers`, or code of your own as `module:attribute` or
    `file.py:attribute`."""
    verifiers: dict[str, str] = Field(default_factory=dict)
    """Verifiers of your own that tasks may name, each with its code, in the same two forms."""
    judge: TeacherConfig | None = None
    """The model behind the verifier `judge` and the part `turn_judge` of rewards; neither is used before it has judged labelled cases."""

    def open_verifiers(
        self, default: str | None = None, listed: Mapping[str, str] | None = None, judge: Verifier | None = None
    ) -> Verifiers:
        """Those that judge the home's tasks; `default` in the place of its own, those `listed` beside them, the `judge` if it is open."""
        return verifiers_of(default or self.verifier, {**self.verifiers, **(listed or {})}, judge)

    @property
    def all_suites(self) -> dict[str, QuestionConfig]:
        """Those that are reported and those of the gate: training keeps clear of both."""
        return {**self.suites, **self.gate}

    def setting_of(self, suite: str) -> str:
        """The key under which a suite stands."""
        return f"evaluation.{'gate' if suite in self.gate else 'suites'}.{suite}"

    @model_validator(mode="after")
    def _check_names(self) -> EvaluationConfig:
        for name in self.all_suites:
            if name in RESERVED or not re.fullmatch(SUITE_NAME, name):
                taken = ", ".join(RESERVED)
                raise ValueError(f"{name!r} cannot be a suite's name: up to 40 of a to z, 0 to 9 and _ . -, and none of {taken}")
        if both := sorted(self.suites.keys() & self.gate.keys()):
            raise ValueError(f"{both[0]} is one of suites and one of gate: what the gate decides on is not what is reported")
        return self

    @model_validator(mode="after")
    def _check_verifier(self) -> EvaluationConfig:
        if not is_verifier(self.verifier, self.verifiers):
            raise ValueError(f"verifier: {unknown(self.verifier, self.verifiers)}")
        if taken := sorted(name for name in self.verifiers if is_verifier(name)):
            raise ValueError(f"verifiers: {taken[0]!r} is the name of another verifier; give yours one of its own")
        if self.judge is not None and not self.judge.is_model:
            raise ValueError("judge.kind must be openai or engine: the graph's oracle answers questions, it judges nothing")
        return self


class FlywheelConfig(TurnConfig):
    """A whole run."""

    seed: NonNegativeInt = 0
    wheel: WheelConfig = WheelConfig()
    corpus: CorpusConfig = CorpusConfig()
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    lake: Storage = LOCAL
    """Where the lake of a new home keeps its catalogue and its data."""
    later: dict[str, Any] = Field(default_factory=dict)
    """Settings of `synth`, `cpt`, `sft` and `rl` that are other from the second turn on."""
    budget: BudgetConfig = BudgetConfig()
    attempts: AttemptConfig = AttemptConfig()
    events: EventsConfig = EventsConfig()

    def beside(self, turn: int) -> AsyncEvaluationConfig | None:
        """What is evaluated beside the training of a turn, with its suites by name."""
        wanted = self.for_turn(turn).rl.evaluate
        return wanted and wanted.model_copy(update={"suites": wanted.suites or tuple(self.evaluation.gate)})

    @property
    def asks_judge(self) -> str | None:
        """The first key that asks for the judge; None where only tasks and suites may."""
        if self.evaluation.verifier == JUDGE:
            return "evaluation.verifier"
        rewards = [self.for_turn(turn).rl.rewards for turn in ((1, 2) if self.later else (1,))]
        if any(one.verifier == JUDGE for one in rewards):
            return "rl.rewards.verifier"
        return "rl.rewards.parts.turn_judge" if any(one.judges_turns for one in rewards) else None

    @model_validator(mode="after")
    def _check_direct_attempts(self) -> FlywheelConfig:
        direct = self.synth.direct_attempts
        if direct is not None and direct.by == "policy" and self.policy.path is None:
            raise ValueError(
                "synth.direct_attempts.by = policy asks a policy, and one from scratch does not exist before the first turn's training: "
                "set it under later.synth.direct_attempts, or name a model by policy.path"
            )
        return self

    @model_validator(mode="after")
    def _check_pages(self) -> FlywheelConfig:
        asked = sum(self.synth.webshaper.wanted().values()) or (
            "sft" in self.wheel.stages and "oracle" in self.sft.sources and sum(self.synth.demonstration_questions.wanted().values())
        )
        if self.corpus.kind == "pages" and self.synth.seeds is None and asked:
            raise ValueError(
                "corpus.kind = pages has no facts to ask about: set synth.seeds.count, and a teacher that asks (synth.teacher); or ask for "
                "no questions (synth.webshaper.counts = {}, sft.from = imported)"
            )
        return self

    @model_validator(mode="after")
    def _check_older(self) -> FlywheelConfig:
        if self.rl.older_share and not self.rollout.engine.older:
            raise ValueError("rl.older_share needs an engine that holds an older policy: set rollout.engine.older = 1")
        return self

    @model_validator(mode="after")
    def _check_later(self) -> FlywheelConfig:
        try:
            self.for_turn(2)
        except ValidationError as error:
            raise ValueError(f"in later, {fault_of(error, 'the settings')}") from error
        return self

    @model_validator(mode="after")
    def _check_tool_worlds(self) -> FlywheelConfig:
        for turn in (1, 2) if self.later else (1,):
            wanted = self.for_turn(turn).synth.tool_worlds
            if wanted is not None and wanted.held_out and wanted.suite not in self.evaluation.all_suites:
                raise ValueError(
                    f"synth.tool_worlds.suite = {wanted.suite} is no suite; the home's are {', '.join(self.evaluation.all_suites)}"
                )
        return self

    @model_validator(mode="after")
    def _check_adapters(self) -> FlywheelConfig:
        served = self.rollout.engine.adapter_rank
        if served is None:
            return self
        trained = [lora.rank for turn in (1, 2) if (lora := self.for_turn(turn).rl.lora) is not None]
        if not trained:
            raise ValueError(f"rollout.engine.adapter_rank = {served} serves adapters, and RL trains none: set rl.lora, or leave it out")
        if max(trained) > served:
            raise ValueError(f"rl.lora.rank = {max(trained)} is more than the engines serve: set rollout.engine.adapter_rank to as much")
        return self

    @model_validator(mode="after")
    def _check_beside(self) -> FlywheelConfig:
        for wanted in (self.beside(1), self.beside(2)):
            if wanted is None:
                continue
            known = self.evaluation.all_suites
            if not wanted.suites:
                raise ValueError(
                    "rl.evaluate has no suite to try: name some under rl.evaluate.suites, or give the gate its own under evaluation.gate"
                )
            if unknown_suite := next((name for name in wanted.suites if name not in known), None):
                raise ValueError(f"rl.evaluate.suites names {unknown_suite!r}, and the home's suites are {', '.join(known)}")
            if len(set(wanted.suites)) < len(wanted.suites):
                raise ValueError("rl.evaluate.suites names a suite twice")
        return self

    @model_validator(mode="after")
    def _check_judge(self) -> FlywheelConfig:
        judge, asking = self.evaluation.judge, self.asks_judge
        if asking and judge is None:
            raise ValueError(f"evaluation.judge is needed, for {asking} asks for one: set evaluation.judge.kind = openai, and its model")
        if asking and judge is not None and judge.kind == "engine":
            raise ValueError(
                f"evaluation.judge.kind = engine judges what is stored alone, and {asking} asks for it while rollouts have the machine: "
                "serve the model (vllm serve) and set evaluation.judge.kind = openai"
            )
        return self

    @model_validator(mode="after")
    def _check_transfer(self) -> FlywheelConfig:
        transfer = self.rollout.engine.transfer
        if transfer not in CUDA_TRANSFERS:
            return self
        for turn in (1, 2):
            learner = self.for_turn(turn).rl.learner
            if not learner.gpus:
                raise ValueError(f"rollout.engine.transfer = {transfer} needs rl.learner.gpus: take gloo or files without")
            if transfer == "ipc" and learner.workers > 1:
                raise ValueError("rollout.engine.transfer = ipc is for a learner of one process, on the engine's GPU: take nccl")
            if transfer == "ipc" and learner.gpus + self.rollout.engine.gpus > 1:
                raise ValueError(
                    "rollout.engine.transfer = ipc is within one card: rollout.engine.gpus and rl.learner.gpus must be shares of it, "
                    "such as 0.5 each"
                )
        return self

    @model_validator(mode="after")
    def _check_sleep(self) -> FlywheelConfig:
        if self.rollout.engine.sleep_level and any(self.for_turn(turn).rl.mode != "synchronous" for turn in (1, 2)):
            raise ValueError(
                "rollout.engine.sleep_level is for engines and a learner that take turns: set rl.mode = synchronous, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_search(self) -> FlywheelConfig:
        if self.rollout.search.imperfect is not None:
            return self
        synths = [self.for_turn(turn).synth for turn in (1, 2)]
        asking = {
            "demonstrations.search = imperfect": any(synth.demonstrations.search == "imperfect" for synth in synths),
            "fas.imperfect": any(synth.fas.imperfect for synth in synths),
        }
        if (asked := next((setting for setting, is_set in asking.items() if is_set), None)) is not None:
            raise ValueError(f"synth.{asked} is for the search of rollouts, and that is perfect: set rollout.search.imperfect")
        return self

    @model_validator(mode="after")
    def _check_again(self) -> FlywheelConfig:
        for stage, config in (("cpt", self.cpt), ("sft", self.sft)):
            if "again" in config.sources:
                raise ValueError(f"{stage}.from names again, and there is nothing before the first turn: set it under later")
        return self

    @model_validator(mode="after")
    def _check_support(self) -> FlywheelConfig:
        if self.rollout.limits.top_p < 1:
            raise ValueError(
                "rollout.limits.top_p must be 1: RL trains on these rollouts, and log-probabilities of a truncated distribution are not "
                "the learner's; a suite may have its own under limits"
            )
        return self

    def for_turn(self, turn: int) -> TurnConfig:
        """The settings of a turn: the first one's, with `later` laid over them from the second on."""
        first = self.model_dump(include=set(TurnConfig.model_fields))
        return TurnConfig.model_validate(first if turn == 1 else lay_over(first, self.later))


TEACHER = "teacher"
"""What stands in the place of a policy's id where the home's teacher plays."""


def playing_teacher(config: FlywheelConfig) -> TeacherConfig:
    """The teacher that plays environments. Raises RequestError where there is none that could."""
    teacher = config.synth.teacher
    if teacher is None or not teacher.is_model:
        raise RequestError(f"--policy {TEACHER} needs a teacher that plays: set synth.teacher.kind to openai or engine.")
    return teacher


def load_config(profile: str, overrides: Sequence[str] = ()) -> FlywheelConfig:
    """The configuration of a profile, by name or by the path of a TOML file, with `overrides` laid over it.

    Raises:
        RequestError: the profile does not exist or is no TOML, or a key or value is wrong: one sentence that names it.
    """
    path = Path(profile) if profile.endswith(".toml") else PROFILES / f"{profile}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.toml")))
        raise RequestError(f"there is no profile {profile!r}; choose one of {known}, or name a TOML file.")
    try:
        return FlywheelConfig.model_validate(read_table(path, overrides))
    except ValidationError as error:
        raise RequestError(describe(error, profile, overrides, FlywheelConfig)) from error


def read_table(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The table of a TOML file with `overrides` laid over it. Raises RequestError where it is no TOML or an override is wrong."""
    return apply_overrides(read_toml(path), overrides)
