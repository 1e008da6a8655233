"""Settings of the corpus and of synthesis, composed of the sections of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rl.retrieval.config import SearchConfig
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
    """Source of facts and documents."""

    kind: Literal["generated", "films", "countries", "files", "pages"] = "generated"
    """A generated world, the film or country graph, files of facts and documents, or pages without facts."""
    path: Path | None = None
    """Folder of the data; None: the public data set of films or countries (`flywheel data list`)."""
    facts: bool = True
    """False: training sees the documents of a graph alone, and only suites are drawn from its facts."""
    longest_document: PositiveInt | None = Field(default=None)
    """Maximum characters of a film's document, in whole sentences."""
    wordings: Path | None = None
    """TOML file with question wordings for the relations of `files`; None: the relations' names."""
    train: WorldConfig = WorldConfig()
    held_out: WorldConfig = WorldConfig()

    @model_validator(mode="after")
    def _check_path(self) -> CorpusConfig:
        if self.path is None and self.kind == "files":
            raise ValueError("path is needed for files: name the folder of facts.* and documents.jsonl")
        if self.path is None and self.kind == "pages":
            raise ValueError("path is needed for pages: name the folder of Markdown and text")
        if self.path is not None and self.kind == "generated":
            raise ValueError("path is for films, countries, files and pages; a generated world reads none")
        if not self.facts and self.kind in ("generated", "pages"):
            raise ValueError("facts = false is for films, countries and files, whose documents can be read without their graph")
        if self.wordings is not None and self.kind != "files":
            raise ValueError("wordings are for files; generated worlds, films and countries have their own")
        return self

    @property
    def trains_on_facts(self) -> bool:
        """Whether training has a graph to ask about."""
        return self.facts and self.kind != "pages"

    @property
    def folder(self) -> Path:
        """The folder of the data. Raises RequestError where it is missing; a home without its data can still be read."""
        folder = locate(self.kind) if self.path is None else self.path
        if not folder.is_dir():
            raise RequestError(f"corpus.path: there is no folder {folder}; put the data there or name another folder.")
        return folder


class SynthConfig(Section):
    """Synthesis of questions, demonstrations and text."""

    webshaper: TrainingQuestionConfig = TrainingQuestionConfig()
    fas: FasConfig = FasConfig()
    has: HasConfig = HasConfig()
    has_count: NonNegativeInt = 1000
    """Trajectories of earlier iterations that become decision records."""
    demonstrations: DemonstrationConfig = DemonstrationConfig()
    demonstration_questions: QuestionConfig = QuestionConfig()
    documents: NonNegativeInt = 1000
    """Documents that CPT reads as plain text."""
    rejection_samples: NonNegativeInt = 1000
    """Successful trajectories of earlier iterations that join the cold start, deeper ones first."""
    rewording: RewordingConfig | None = None
    seeds: SeedsConfig | None = None
    expander: ExpanderConfig | None = None
    tool_worlds: WrittenWorldsConfig | None = None
    direct_attempts: DirectAttemptsConfig | None = None
    extraction: ExtractionConfig = ExtractionConfig()
    decontamination: DecontaminationConfig = DecontaminationConfig()
    teacher: TeacherConfig | None = None
    judge: TeacherConfig | None = None
    """A model behind a server that checks what `teacher` writes; None: the teacher does, where it is fit for it."""
    batch: PositiveInt = 50_000
    """Maximum questions or examples per commit, and so the work that a killed run repeats."""

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
            raise ValueError(f"teacher is needed, for {key} asks for one: set synth.teacher.kind to openai or engine")
        if self.judge is not None and self.judge.kind != "openai":
            raise ValueError("judge is a model behind a server: set synth.judge.kind to openai")
        return self

    @property
    def _teacher_attempts(self) -> bool:
        return self.direct_attempts is not None and self.direct_attempts.by == "teacher"

    @property
    def model_teacher(self) -> TeacherConfig | None:
        """The teacher, if it is a model and not the graph's oracle."""
        return self.teacher if self.teacher is not None and self.teacher.is_model else None

    @property
    def asks_for_questions(self) -> bool:
        """Whether the questions of RL need the teacher."""
        return any(part is not None for part in (self.rewording, self.expander, self.seeds)) or self._teacher_attempts

    def teacher_of(self, kind: str) -> TeacherConfig | None:
        """The teacher that one kind of synthesis needs, if any."""
        return None if kind == "webshaper" and not self.asks_for_questions else self.teacher

    @property
    def makes_tasks(self) -> bool:
        """Whether it makes tasks for RL."""
        return bool(sum(self.webshaper.wanted().values())) or self.seeds is not None or self.tool_worlds is not None

    def check_search(self, search: SearchConfig) -> None:
        """Raises ValueError where an imperfect search is asked for and that of rollouts is perfect."""
        asking = {
            "demonstrations.search = imperfect": self.demonstrations.search == "imperfect",
            "fas.imperfect": self.fas.imperfect > 0,
        }
        if search.imperfect is None and (key := next((key for key, asks in asking.items() if asks), None)):
            raise ValueError(f"synth.{key} is for the search of rollouts, and that is perfect: set rollout.search.imperfect")

    def check_first(self, policy: str | None) -> None:
        """Raises ValueError where the first iteration asks a policy that does not exist yet; `policy` is `policy.path`."""
        if self.direct_attempts is not None and self.direct_attempts.by == "policy" and policy is None:
            raise ValueError(
                "synth.direct_attempts.by = policy asks a policy, and one from scratch does not exist before the first turn's training: "
                "set it under later.synth.direct_attempts, or name a model by policy.path"
            )

    def check_documents(self, oracle_demonstrates: bool) -> None:
        """Raises ValueError where questions of a graph are asked for and training has only documents."""
        asked = sum(self.webshaper.wanted().values())
        asked += sum(self.demonstration_questions.wanted().values()) if oracle_demonstrates else 0
        if self.seeds is None and asked:
            raise ValueError(
                "documents alone (corpus.kind = pages, or corpus.facts = false) have no facts to ask about: set synth.seeds.count, and a "
                "teacher that asks (synth.teacher); or ask for no questions (synth.webshaper.counts = {}, sft.from = imported)"
            )
