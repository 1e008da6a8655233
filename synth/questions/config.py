"""The configuration of questions: how many of which kind, and which of those found are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from warehouse.settings import Section

QuestionStructure = Literal["paths", "layerwise", "random", "sequential"]


class QuestionConfig(Section):
    """How many questions of which kind."""

    counts: dict[int, int] = Field(default_factory=lambda: {1: 100, 2: 100, 3: 100, 4: 100})
    """Questions wanted by hops (1 to 6): the number of documents that must be read; by layers where `structure` is not `paths`."""
    count: int | None = Field(default=None, ge=0)
    """Questions wanted in all, in the shares of `counts`; by default as many as `counts` says.

    What the graph has too few of is then made up for by questions of other shapes and hops.
    """
    structure: QuestionStructure = "paths"
    """How a question comes to be: drawn as a path from document to document, or grown from a seed; see `synth.questions.expansion`.

    In grown ones `intersections` is the share of unknowns with two constraints, and `unions` that of questions with an open constant.
    """
    intersections: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that begin with an entity of which two things are known instead of its name."""
    unions: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that begin so and leave one of the two things open between two values."""
    identify: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share that ask for an entity itself, among the questions whose last document is found by two things known of it."""
    set_answers: bool = False
    """Whether a question may have several answers, up to 20; they are then marked as sets in their provenance."""
    allowed_shortcuts: int = Field(default=2, ge=0)
    """Constants that may stand right beside the target: the plainest chain has one there, an intersection that asks for its entity two."""
    easy: Literal["keep", "drop"] = "keep"
    """What is done with a question whose own text, given to the search, already brings a document of the answer on top."""
    variety: int = Field(default=1, ge=1, le=3)
    """How freely the questions are worded; see `synth.questions.wording`."""
    split: str = "train"
    environment: str = "search"

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
    """Questions that are trained on.

    They are grown layer by layer unless `structure` says otherwise; a suite's and a demonstration's are paths, which their figures and the
    oracle go by.
    """

    structure: QuestionStructure = "layerwise"
