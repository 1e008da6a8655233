"""Settings of the corpus (`corpus`) and of data synthesis (`synth`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rl.retrieval.config import SearchConfig
from synth.bugs.config import BugsConfig
from synth.corpora.config import ExpanderConfig, ExtractionConfig, SeedsConfig
from synth.demonstrations.cold_start import DemonstrationConfig
from synth.fas.reasoning import FasConfig
from synth.has.records import HasConfig
from synth.questions.builder import QuestionConfig, TrainingQuestionConfig
from synth.questions.decontamination import DecontaminationConfig
from synth.questions.difficulty import DirectAttemptsConfig
from synth.questions.rewording import RewordingConfig
from synth.teachers.config import TeacherConfig
from synth.worlds.world import WorldConfig
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse.errors import RequestError
from warehouse.public_data.catalogue import locate
from warehouse.settings import Section


class CorpusConfig(Section):
    """Where facts and documents come from."""

    kind: Literal["generated", "films", "countries", "files", "pages"] = "generated"
    """Generated world, film graph, country graph, user files of facts and documents, or pages without facts."""
    path: Path | None = None
    """Data folder; required for files and pages. None: the downloaded public data set of films or countries (`flywheel data list`)."""
    facts: bool = True
    """False: train on the documents only; facts are used for evaluation suites. For films, countries and files."""
    longest_document: PositiveInt | None = Field(default=None)
    """Maximum characters of a film's document, cut at a sentence end. None: no limit."""
    wordings: Path | None = None
    """TOML file that words questions for each relation of `files`. None: use the relation names."""
    train: WorldConfig = WorldConfig()
    held_out: WorldConfig = WorldConfig()

    @model_validator(mode="after")
    def _check_path(self) -> CorpusConfig:
        if self.path is None and self.kind == "files":
            raise ValueError("path is needed for files: set it to the folder of facts.* and documents.jsonl")
        if self.path is None and self.kind == "pages":
            raise ValueError("path is needed for pages: set it to the folder of Markdown and text")
        if self.path is not None and self.kind == "generated":
            raise ValueError("path is for films, countries, files and pages; a generated world has no path")
        if not self.facts and self.kind in ("generated", "pages"):
            raise ValueError("facts = false is for films, countries and files, whose documents can be read without their graph")
        if self.wordings is not None and self.kind != "files":
            raise ValueError("wordings are for files; generated worlds, films and countries have their own")
        return self

    @property
    def trains_on_facts(self) -> bool:
        return self.facts and self.kind != "pages"

    @property
    def folder(self) -> Path:
        """Data folder. Raises RequestError if it does not exist."""
        folder = locate(self.kind) if self.path is None else self.path
        if not folder.is_dir():
            raise RequestError(f"corpus.path: there is no folder {folder}; put the data there or choose another folder.")
        return folder


class SynthConfig(Section):
    """Synthesis of questions, demonstrations and text."""

    webshaper: TrainingQuestionConfig = TrainingQuestionConfig()
    fas: FasConfig = FasConfig()
    has: HasConfig = HasConfig()
    has_count: NonNegativeInt = 1000
    """Maximum number of trajectories of earlier iterations to turn into HAS decision records."""
    demonstrations: DemonstrationConfig = DemonstrationConfig()
    demonstration_questions: QuestionConfig = QuestionConfig()
    documents: NonNegativeInt = 1000
    """Maximum number of documents used as plain text for CPT."""
    rejection_samples: NonNegativeInt = 1000
    """Maximum number of successful trajectories of earlier iterations to add to SFT, deepest questions first."""
    rewording: RewordingConfig | None = None
    seeds: SeedsConfig | None = None
    expander: ExpanderConfig | None = None
    tool_worlds: WrittenWorldsConfig | None = None
    bugs: BugsConfig | None = None
    direct_attempts: DirectAttemptsConfig | None = None
    extraction: ExtractionConfig = ExtractionConfig()
    decontamination: DecontaminationConfig = DecontaminationConfig()
    teacher: TeacherConfig | None = None
    judge: TeacherConfig | None = None
    """Model server (`kind = openai`) that checks the output of `teacher`. None: the teacher does, where it passes calibration."""
    batch: PositiveInt = 50_000
    """Maximum questions or examples per commit. A killed run repeats at most one batch."""

    @model_validator(mode="after")
    def _check_teacher(self) -> SynthConfig:
        asking = {
            "fas.plans": self.fas.plans == "teacher",
            "fas.reasoner": self.fas.reasoner == "teacher",
            "fas.judge": self.fas.judge,
            "fas.slice_reasoning": self.fas.slice_reasoning,
            "has.mixture or has.outcomes": self.has.asks("teacher"),
            "rewording": self.rewording is not None,
            "expander": self.expander is not None,
            "seeds": self.seeds is not None,
            "direct_attempts": self._teacher_attempts,
            "tool_worlds": self.tool_worlds is not None,
        }
        if self.model_teacher is None and (key := next((key for key, asks in asking.items() if asks), None)):
            raise ValueError(f"{key} needs a teacher: set synth.teacher.kind to openai or engine")
        if self.judge is not None and self.judge.kind != "openai":
            raise ValueError("judge must be a model on a server: set synth.judge.kind to openai")
        return self

    @property
    def _teacher_attempts(self) -> bool:
        return self.direct_attempts is not None and self.direct_attempts.by == "teacher"

    @property
    def model_teacher(self) -> TeacherConfig | None:
        """The teacher if it is a model; None if it is the graph oracle."""
        return self.teacher if self.teacher is not None and self.teacher.is_model else None

    @property
    def asks_for_questions(self) -> bool:
        return any(part is not None for part in (self.rewording, self.expander, self.seeds)) or self._teacher_attempts

    def teacher_of(self, kind: str) -> TeacherConfig | None:
        """Teacher required by this kind of synthesis, or None."""
        return None if kind == "bugs" or (kind == "webshaper" and not self.asks_for_questions) else self.teacher

    @property
    def makes_tasks(self) -> bool:
        return bool(sum(self.webshaper.wanted().values())) or any(part is not None for part in (self.seeds, self.tool_worlds, self.bugs))

    def check_search(self, search: SearchConfig) -> None:
        """Raise ValueError if imperfect search is requested but `search`, the rollout search, is perfect."""
        asking = {
            "demonstrations.search = imperfect": self.demonstrations.search == "imperfect",
            "fas.imperfect": self.fas.imperfect > 0,
        }
        if search.imperfect is None and (key := next((key for key, asks in asking.items() if asks), None)):
            raise ValueError(f"synth.{key} needs an imperfect search in rollouts: set rollout.search.imperfect")

    def check_first(self, policy: str | None) -> None:
        """Raise ValueError if the first iteration needs a policy but `policy` (`policy.path`) is None."""
        if self.direct_attempts is not None and self.direct_attempts.by == "policy" and policy is None:
            raise ValueError(
                "synth.direct_attempts.by = policy needs a policy, and there is none before the first turn's training: "
                "set it under later.synth.direct_attempts, or set policy.path to a model"
            )

    def check_documents(self, oracle_demonstrates: bool) -> None:
        """Raise ValueError if graph questions are requested but training has only documents."""
        asked = sum(self.webshaper.wanted().values())
        asked += sum(self.demonstration_questions.wanted().values()) if oracle_demonstrates else 0
        if self.seeds is None and asked:
            raise ValueError(
                "documents without facts (corpus.kind = pages, or corpus.facts = false) allow no graph questions: set synth.seeds.count "
                "and a teacher (synth.teacher), or turn off graph questions (synth.webshaper.counts = {}, sft.from = imported)"
            )
