"""The configuration of the supervised stages: continual pre-training and SFT, and whose text they read."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rl.learner.config import OptimizerConfig
from warehouse.settings import Section


class SupervisedConfig(OptimizerConfig):
    """Training on examples: how much of them at a time, and for how long."""

    row_tokens: PositiveInt = 256
    """Tokens of a packed row; a longer example stands in a row of its own. Wider rows cost more, for attention is quadratic in them."""
    max_example_tokens: PositiveInt = 1024
    """Longer examples are left out and counted: a cut one would teach to stop in the middle."""
    rows_per_step: PositiveInt = 6
    rows_per_pass: PositiveInt = 6
    """Rows that go through the model at once; divides `rows_per_step`."""
    epochs: PositiveFloat = 1.0
    max_tokens: PositiveInt | None = None
    """Training ends after about this many tokens, padding of rows included, where the epochs have more."""
    log_every: PositiveInt = 10
    """Steps between figures."""
    held_out_share: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of the examples that is not trained on; their loss is measured at each checkpoint. 0: none, and no early stop."""
    patience: PositiveInt = 3
    """Checkpoints in a row without a lower held-out loss that end the training; the policy is then that of the lowest."""

    def steps_of_epochs(self, steps: int) -> int:
        """The optimiser's steps of all epochs, where one has `steps`; what binary fractions are off by is none."""
        return math.ceil(round(self.epochs * steps, 6))


class GeneralTextConfig(Section):
    """Ordinary text that is read among the agentic one, against forgetting."""

    path: Path
    """A file of rows (.jsonl, .parquet, .csv, .tsv), a folder that `datasets` has saved, or one of Markdown and plain text."""
    column: str = "text"
    """Where rows have their text."""
    share: float = Field(default=0.05, gt=0, lt=1)
    """Share of the tokens of each stage that are general text, as far as there is so much."""
    held_out: PositiveInt = 50
    """Texts that are never trained on: their loss is measured before and after."""


PretrainingText = Literal["fas", "has", "documents", "again"]


class CptConfig(SupervisedConfig):
    """Continual pre-training; the rate is that of a small policy from scratch."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    sources: tuple[PretrainingText, ...] = Field(default=("fas", "has", "documents"), alias="from", min_length=1)
    """What it reads: plans and reasoning (`synth.fas`), decision records of earlier turns' trajectories (`synth.has`), documents
    (`synth.documents`), or what the first turn read, again. What is not named is not made."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    contexts: tuple[PositiveInt, ...] = ()
    """Tokens of the longest example, and of a row, of each stage in turn; a stage reads what the one before could not hold. Empty: one
    stage, by `row_tokens` and `max_example_tokens`."""
    general: GeneralTextConfig | None = None

    @model_validator(mode="after")
    def _check_contexts(self) -> CptConfig:
        if any(later <= earlier for earlier, later in pairwise(self.contexts)):
            raise ValueError(f"contexts must grow from stage to stage, and they are {list(self.contexts)}")
        return self


class ToolMapping(Section):
    """What a tool of somebody else's runs is called here."""

    name: str
    """One of the tools on offer; an empty name takes the runs that call it out."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Our name of each argument by theirs; what is not named keeps its name."""


class StoredRunsConfig(Section):
    """Which stored trajectories become examples, of the imported ones or of all."""

    where: str = "TRUE"
    """SQL condition on the table `trajectories`."""
    tools: dict[str, ToolMapping] = Field(default_factory=dict)
    """Our tools by theirs. Without any, runs keep their own tools, and examples offer these."""
    unjudged: Literal["drop", "keep"] = "drop"
    """Runs without a verdict; failures and invalid ones are never taken."""
    per_task: PositiveInt = 1
    """Examples of one task at most, the shortest runs first."""
    count: PositiveInt | None = None
    """Examples at most, drawn at random; None: all."""


class ImportedRunsConfig(StoredRunsConfig):
    """Which imported runs become examples; one that came without a reward is a demonstration."""

    unjudged: Literal["drop", "keep"] = "keep"


class TaughtRunsConfig(Section):
    """How a teacher plays the environment, and what is taken of it."""

    attempts: PositiveInt = 5
    """Runs of each of `synth.demonstration_questions`; the verifier chooses. WebShaper (arXiv 2507.15061) takes five."""
    per_task: PositiveInt = 1
    """Examples of one question at most, the shortest successes first."""
    temperature: NonNegativeFloat = 0.7
    horizon: PositiveInt = 8
    """Turns of a run at most."""
    max_action_tokens: PositiveInt = 512
    """Of one answer of the teacher, in its own tokens."""
    max_observation_characters: PositiveInt = 4_000
    max_context_characters: PositiveInt = 60_000


ColdStart = Literal["oracle", "own", "imported", "rollouts", "teacher", "again"]


class SftConfig(SupervisedConfig):
    """Supervised fine-tuning; the rate is lower than in pre-training, so that what was learnt there stays."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    sources: tuple[ColdStart, ...] = Field(default=("oracle", "own"), alias="from", min_length=1)
    """Whose runs it learns from: the graph's oracle (`synth.demonstrations`), the wheel's own successes of earlier turns, imported runs,
    stored rollouts, a teacher (`synth.teacher`) that plays the environment, or what the first turn learnt from, again."""
    imported: ImportedRunsConfig = ImportedRunsConfig()
    rollouts: StoredRunsConfig = StoredRunsConfig(where="stage = 'rollout'")
    teacher: TaughtRunsConfig = TaughtRunsConfig()
    learning_rate: float = Field(default=5e-4, gt=0, le=1)
    mask_observations: bool = True
    """Leave prompts and observations out of the loss. False is a defect, there to be measured: benchmarks/ablations.py does."""
