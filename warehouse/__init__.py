"""The warehouse: records shared by all stages, and the lake that stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warehouse.errors import RequestError
from warehouse.records import (
    TRAINED_SPLITS,
    Batch,
    Call,
    Check,
    Completion,
    Document,
    DocumentSplit,
    Example,
    Fact,
    Failure,
    Image,
    Metric,
    Outcome,
    Part,
    PartKind,
    Pin,
    Policy,
    RewardPart,
    Run,
    Score,
    SearchCounts,
    StopReason,
    Task,
    Trajectory,
    Triple,
    Turn,
)

if TYPE_CHECKING:
    from warehouse.lake import Lake
    from warehouse.schema import Record

__all__ = [
    "TRAINED_SPLITS",
    "Batch",
    "Call",
    "Check",
    "Completion",
    "Document",
    "DocumentSplit",
    "Example",
    "Fact",
    "Failure",
    "Image",
    "Lake",
    "Metric",
    "Outcome",
    "Part",
    "PartKind",
    "Pin",
    "Policy",
    "Record",
    "RequestError",
    "RewardPart",
    "Run",
    "Score",
    "SearchCounts",
    "StopReason",
    "Task",
    "Trajectory",
    "Triple",
    "Turn",
]


def __getattr__(name: str) -> Any:
    """Import Lake and Record lazily: DuckDB and Arrow would take four fifths of `flywheel --help`'s start-up time."""
    if name == "Lake":
        from warehouse.lake import Lake

        return Lake
    if name == "Record":
        from warehouse.schema import Record

        return Record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
