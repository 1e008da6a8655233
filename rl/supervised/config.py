"""Configuration of the supervised stages, continual pre-training (CPT) and SFT, and of their data sources."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rl.learner.config import OptimizerConfig
from warehouse.settings import Section


class SupervisedConfig(OptimizerConfig):
    """Training on packed examples: batch sizes and duration."""

    row_tokens: PositiveInt = 256
    """Tokens per packed row; a longer example gets its own row."""
    max_example_tokens: PositiveInt = 1024
    """Maximum tokens per example; longer ones are dropped and counted."""
    rows_per_step: PositiveInt = 6
    """Batch size of an optimizer step, in rows."""
    rows_per_pass: PositiveInt = 6
    """Micro-batch size in rows; must divide `rows_per_step`."""
    epochs: PositiveFloat = 1.0
    """Number of passes over the examples."""
    max_tokens: PositiveInt | None = None
    """Maximum number of training tokens, including padding."""
    log_every: PositiveInt = 10
    """Steps between metrics."""
    held_out_share: float = Field(default=0.0, ge=0, lt=0.5)
    """Fraction of examples held out to measure the loss at each checkpoint; 0 disables early stopping."""
    patience: PositiveInt = 3
    """Number of checkpoints without a lower held-out loss before early stopping; the best checkpoint is kept."""

    def steps_of_epochs(self, steps: int) -> int:
        """Optimizer steps of all epochs, given the `steps` of one; rounded to absorb floating-point error."""
        return math.ceil(round(self.epochs * steps, 6))


class GeneralTextConfig(Section):
    """General text mixed into CPT against forgetting."""

    path: Path
    """A file of rows (.jsonl, .parquet, .csv, .tsv), a folder saved by `datasets`, or a folder of Markdown and text files."""
    column: str = "text"
    """Column that holds the text."""
    share: float = Field(default=0.05, gt=0, lt=1)
    """Fraction of general text in the tokens of each stage."""
    held_out: PositiveInt = 50
    """Number of texts held out to measure forgetting."""


PretrainingText = Literal["fas", "has", "documents", "again"]


class CptConfig(SupervisedConfig):
    """Continual pre-training. The default learning rate suits a small policy from scratch."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    sources: tuple[PretrainingText, ...] = Field(default=("fas", "has", "documents"), alias="from", min_length=1)
    """Sources: plans and reasoning (`fas`), decision records of earlier runs (`has`), `documents`, the first iteration's text (`again`)."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    contexts: tuple[PositiveInt, ...] = ()
    """Context lengths of successive stages, each training on examples too long for the previous stage; empty: one stage."""
    general: GeneralTextConfig | None = None
    """General text to mix in; None: none."""

    @model_validator(mode="after")
    def _check_contexts(self) -> CptConfig:
        if any(later <= earlier for earlier, later in pairwise(self.contexts)):
            raise ValueError(f"contexts must increase from stage to stage, got {list(self.contexts)}")
        return self


class ToolMapping(Section):
    """Maps a tool of stored runs to one of our tools."""

    name: str
    """Name of our tool; empty drops the runs that call it."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Our argument names by theirs; arguments not listed keep their names."""


class StoredRunsConfig(Section):
    """Which stored trajectories become examples."""

    where: str = "TRUE"
    """SQL condition on the table `trajectories`."""
    tools: dict[str, ToolMapping] = Field(default_factory=dict)
    """Tool mappings by their tool names; empty: examples offer the runs' own tools."""
    unjudged: Literal["drop", "keep"] = "drop"
    """Drop or keep runs without a verdict; failures and invalid runs are always dropped."""
    per_task: PositiveInt = 1
    """Maximum examples per task, shortest runs first."""
    count: PositiveInt | None = None
    """Maximum number of examples, sampled at random; None: all."""


class ImportedRunsConfig(StoredRunsConfig):
    """Which imported runs become examples; a run without a reward counts as a demonstration."""

    unjudged: Literal["drop", "keep"] = "keep"


class TaughtRunsConfig(Section):
    """Demonstrations by a teacher that acts in the environment."""

    attempts: PositiveInt = 5
    """Runs per question of `synth.demonstration_questions`; WebShaper (arXiv 2507.15061) uses five."""
    per_task: PositiveInt = 1
    """Maximum examples per question, shortest successes first."""
    temperature: NonNegativeFloat = 0.7
    """Sampling temperature."""
    horizon: PositiveInt = 8
    """Maximum turns per run."""
    max_action_tokens: PositiveInt = 512
    """Maximum tokens per action, in the teacher's tokens."""
    max_observation_characters: PositiveInt = 4_000
    """Maximum characters per observation."""
    max_context_characters: PositiveInt = 60_000
    """Maximum characters of prompt, actions and observations together."""


ColdStart = Literal["oracle", "own", "imported", "rollouts", "teacher", "again"]


class SftConfig(SupervisedConfig):
    """Supervised fine-tuning, by default with a lower learning rate than CPT."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    sources: tuple[ColdStart, ...] = Field(default=("oracle", "own"), alias="from", min_length=1)
    """Example sources: the graph's `oracle`, `own` earlier successes, `imported` runs, stored `rollouts`, an acting `teacher`, the first
    iteration's examples (`again`).
    """
    imported: ImportedRunsConfig = ImportedRunsConfig()
    rollouts: StoredRunsConfig = StoredRunsConfig(where="stage = 'rollout'")
    teacher: TaughtRunsConfig = TaughtRunsConfig()
    learning_rate: float = Field(default=5e-4, gt=0, le=1)
    mask_observations: bool = True
    """Exclude prompts and observations from the loss; set to false only for ablations."""


def check_first(cpt: CptConfig, sft: SftConfig) -> None:
    """Raise ValueError if the first iteration names the source `again`, which needs an earlier one."""
    for stage, sources in (("cpt", cpt.sources), ("sft", sft.sources)):
        if "again" in sources:
            raise ValueError(f"{stage}.from contains again, but nothing precedes the first iteration: set it under later")
