"""Settings of questions: how many of which kind, and which are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from warehouse.settings import Section

QuestionStructure = Literal["paths", "layerwise", "random", "sequential"]


class QuestionConfig(Section):
    """Questions from the graph: how many of which kind."""

    counts: dict[int, int] = Field(default_factory=lambda: {1: 100, 2: 100, 3: 100, 4: 100})
    """Questions by hops (1 to 6), the number of documents to read; by layers unless `structure` is `paths`."""
    count: int | None = Field(default=None, ge=0)
    """Total number of questions, in the proportions of `counts`; other shapes and hops fill gaps."""
    structure: QuestionStructure = "paths"
    """How questions are built: as paths between documents, or expanded from a seed (`synth/questions/expansion.py`)."""
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of questions that start from two properties of an entity instead of its name."""
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of questions that do so with one property open between two values."""
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of questions that ask for the entity itself, among those whose last document is found by two properties."""
    set_answers: bool = False
    """Allow questions with up to 20 answers, marked as sets."""
    allowed_shortcuts: int = Field(default=2, ge=0)
    """Maximum constants adjacent to the target in the formula."""
    easy: Literal["keep", "drop"] = "keep"
    """Whether to drop questions whose own text, used as a query, retrieves a document of the answer first."""
    variety: int = Field(default=1, ge=1, le=3)
    """Variety of the wording, from 1 to 3."""
    environment: str = "search"
    """Environment of the tasks."""

    @model_validator(mode="after")
    def _check(self) -> QuestionConfig:
        if self.intersections + self.unions > 1:
            raise ValueError("intersections and unions are shares of all questions: together at most 1")
        if any(hops not in range(1, 7) or count < 0 for hops, count in self.counts.items()):
            raise ValueError("counts has hops from 1 to 6 and no negative number")
        if self.count and not sum(self.counts.values()):
            raise ValueError("count is shared out as counts says, and counts wants no question at all")
        return self

    @property
    def unit(self) -> str:
        """What `counts` counts questions by."""
        return "hops" if self.structure == "paths" else "layers"

    @property
    def asked_by(self) -> str:
        """The key that says how many questions are wanted."""
        return "counts" if self.count is None else "count"

    def wanted(self) -> dict[int, int]:
        """Questions by rising hops; what remains of `count` after rounding down goes to the largest remainders."""
        if self.count is None:
            return dict(sorted(self.counts.items()))
        total = sum(self.counts.values())
        exact = {hops: self.count * number / total for hops, number in sorted(self.counts.items())}
        left = self.count - sum(map(int, exact.values()))
        raised = sorted(exact, key=lambda hops: int(exact[hops]) - exact[hops])[:left]
        return {hops: int(number) + (hops in raised) for hops, number in exact.items()}


class TrainingQuestionConfig(QuestionConfig):
    """Questions that RL trains on; layerwise by default, where suites and demonstrations use paths."""

    structure: QuestionStructure = "layerwise"
