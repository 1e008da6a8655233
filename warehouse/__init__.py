"""The warehouse: the records that all stages share, and the lake that keeps them."""

from __future__ import annotations

from warehouse.errors import RequestError
from warehouse.lake import Lake
from warehouse.records import (
    Batch,
    Call,
    Check,
    Completion,
    Document,
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
    StopReason,
    Task,
    Trajectory,
    Triple,
    Turn,
)
from warehouse.schema import Record

__all__ = [
    "Batch",
    "Call",
    "Check",
    "Completion",
    "Document",
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
    "StopReason",
    "Task",
    "Trajectory",
    "Triple",
    "Turn",
]
