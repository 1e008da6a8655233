"""The tables of the lake: the one place where columns and the fields of records are matched.

A table has its record's name in the plural and a column for each of its fields. Some columns are derived (digests, counts):
they are there for SQL and are not read back. Every table also has `recorded`, the UTC time of the commit that wrote the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from warehouse.codec import (
    FLAG,
    INTEGER,
    INTEGERS,
    JSON,
    REAL,
    REALS,
    SEGMENTS,
    TEXT,
    TEXTS,
    TIME,
    TRIPLES,
    Kind,
    enumeration,
    to_json,
)
from warehouse.digests import digest
from warehouse.records import (
    Call,
    Check,
    Completion,
    Document,
    Example,
    Fact,
    Failure,
    Metric,
    Outcome,
    Policy,
    Run,
    Score,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

Record = Fact | Document | Task | Trajectory | Score | Example | Check | Completion | Policy | Run | Metric | Failure
"""What a lake takes and gives; turns travel inside their trajectory, and calls inside their turn."""
R = TypeVar("R")


class OwnedTurn(NamedTuple):
    """A turn with the id of the trajectory that it belongs to: what a row of `turns` is made from."""

    trajectory_id: str
    turn: Turn


class OwnedCall(NamedTuple):
    """A call with its place: what a row of `tool_calls` is made from."""

    trajectory_id: str
    turn_index: int
    call_index: int
    call: Call


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its kind, and where its value comes from (the record's attribute of that name by default)."""

    name: str
    kind: Kind
    derive: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """A table, the record that its rows are, and the columns that tell rows apart."""

    name: str
    record: type[R]
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """The statement that makes the table where it is missing."""
        columns = ", ".join(f'"{column.name}" {column.kind.sql}' for column in self.columns)
        return f'CREATE TABLE IF NOT EXISTS {self.name} ({columns}, "recorded" TIMESTAMP)'

    def key_of(self, record: Any) -> tuple[Any, ...]:
        """The values of the key columns, in their order."""
        return tuple(self._getter(name)(record) for name in self.key)

    def encode(self, records: Sequence[Any]) -> pa.Table:
        """One Arrow column for each column of the table but `recorded`."""
        arrays = {column.name: column.kind.encode([_getter(column)(record) for record in records]) for column in self.columns}
        return pa.table(arrays)

    def encode_keys(self, keys: Sequence[tuple[Any, ...]]) -> pa.Table:
        """An Arrow table of the key columns alone."""
        kinds = {column.name: column.kind for column in self.columns}
        values = zip(*keys, strict=True) if keys else [()] * len(self.key)
        return pa.table({name: kinds[name].encode(list(column)) for name, column in zip(self.key, values, strict=True)})

    def decode(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Lists of values for each column that stands in `batch`, by name."""
        kinds = {column.name: column.kind for column in self.columns}
        return {name: kinds[name].decode(batch.column(name)) for name in batch.schema.names}

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The record's fields that have a column, in the order of its constructor."""
        names = {column.name for column in self.columns}
        return tuple(field.name for field in fields(self.record) if field.name in names)  # type: ignore[arg-type]

    def _getter(self, name: str) -> Callable[[Any], Any]:
        return _getter(next(column for column in self.columns if column.name == name))


def _getter(column: Column) -> Callable[[Any], Any]:
    return column.derive or attrgetter(column.name)


def _turn_column(name: str, kind: Kind) -> Column:
    return Column(name, kind, attrgetter(f"turn.{name}"))


def _call_column(name: str, kind: Kind) -> Column:
    return Column(name, kind, attrgetter(f"call.{name}"))


def _failure_id(failure: Failure) -> str:
    return digest([failure.stage, failure.kind, failure.reason, to_json(failure.item)])


FACTS = Table(
    "facts",
    Fact,
    ("source", "subject", "relation", "object"),
    (
        Column("subject", TEXT),
        Column("relation", TEXT),
        Column("object", TEXT),
        Column("documents", TEXTS),
        Column("source", TEXT),
    ),
)
DOCUMENTS = Table(
    "documents",
    Document,
    ("id",),
    (Column("id", TEXT), Column("title", TEXT), Column("text", TEXT), Column("source", TEXT)),
)
TASKS = Table(
    "tasks",
    Task,
    ("key",),
    (
        Column("key", TEXT),
        Column("digest", TEXT),
        Column("environment", TEXT),
        Column("question", TEXT),
        Column("answers", TEXTS),
        Column("formula", TRIPLES),
        Column("split", TEXT),
        Column("hops", INTEGER),
        Column("constraints", INTEGER),
        Column("layers", INTEGER),
        Column("provenance", JSON),
        Column("proofs", JSON),
    ),
)
TRAJECTORIES = Table(
    "trajectories",
    Trajectory,
    ("id",),
    (
        Column("id", TEXT),
        Column("task_key", TEXT),
        Column("policy", TEXT),
        Column("stage", TEXT),
        Column("outcome", enumeration(Outcome)),
        Column("stop_reason", enumeration(StopReason)),
        Column("horizon", INTEGER),
        Column("n_turns", INTEGER, lambda trajectory: len(trajectory.turns)),
        Column("reward", REAL),
        Column("wheel_turn", INTEGER),
        Column("step", INTEGER),
        Column("suite", TEXT),
        Column("sample", INTEGER),
        Column("prompt_ids", INTEGERS),
        Column("seed", INTEGER),
        Column("started", TIME),
        Column("seconds", REAL),
        Column("answer", TEXT),
        Column("error", TEXT),
        Column("provenance", JSON),
    ),
)
TURNS = Table(
    "turns",
    Turn,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT),
        _turn_column("index", INTEGER),
        _turn_column("action", TEXT),
        _turn_column("tool", TEXT),
        _turn_column("arguments", TEXT),
        _turn_column("observation", TEXT),
        _turn_column("tool_outcome", TEXT),
        _turn_column("reward", REAL),
        _turn_column("latency", REAL),
        _turn_column("policy_version", INTEGER),
        _turn_column("policy_versions", INTEGERS),
        _turn_column("action_ids", INTEGERS),
        _turn_column("action_logprobs", REALS),
        _turn_column("observation_ids", INTEGERS),
    ),
)
TOOL_CALLS = Table(
    "tool_calls",
    Call,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT),
        Column("turn_index", INTEGER),
        Column("call_index", INTEGER),
        _call_column("tool", TEXT),
        _call_column("arguments", TEXT),
        _call_column("outcome", TEXT),
        _call_column("observation", TEXT),
        _call_column("latency_seconds", REAL),
        _call_column("retries", INTEGER),
        _call_column("reward", REAL),
        _call_column("figures", JSON),
    ),
)
SCORES = Table(
    "scores",
    Score,
    ("trajectory_id", "verifier", "version"),
    (
        Column("trajectory_id", TEXT),
        Column("verifier", TEXT),
        Column("version", TEXT),
        Column("value", REAL),
        Column("verdict", enumeration(Outcome)),
        Column("error", TEXT),
    ),
)
EXAMPLES = Table(
    "examples",
    Example,
    ("id",),
    (
        Column("id", TEXT),
        Column("kind", TEXT),
        Column("segments", SEGMENTS),
        Column("sources", TEXTS),
        Column("wheel_turn", INTEGER),
        Column("token_ids", INTEGERS),
        Column("loss_mask", INTEGERS),
    ),
)
CHECKS = Table(
    "checks",
    Check,
    ("sample", "checker", "version"),
    (
        Column("sample", TEXT),
        Column("kind", TEXT),
        Column("checker", TEXT),
        Column("version", TEXT),
        Column("accepted", FLAG),
        Column("reason", TEXT),
    ),
)
COMPLETIONS = Table(
    "completions",
    Completion,
    ("id",),
    (
        Column("id", TEXT),
        Column("teacher", TEXT),
        Column("request", JSON),
        Column("text", TEXT),
        Column("ending", TEXT),
        Column("prompt_tokens", INTEGER),
        Column("completion_tokens", INTEGER),
        Column("attempts", INTEGER),
        Column("seconds", REAL),
    ),
)
POLICIES = Table(
    "policies",
    Policy,
    ("id",),
    (
        Column("id", TEXT),
        Column("parent", TEXT),
        Column("stage", TEXT),
        Column("path", TEXT),
        Column("weights_digest", TEXT),
        Column("snapshot", INTEGER),
        Column("wheel_turn", INTEGER),
        Column("promoted", FLAG),
    ),
)
RUNS = Table(
    "runs",
    Run,
    ("id",),
    (
        Column("id", TEXT),
        Column("stage", TEXT),
        Column("wheel_turn", INTEGER),
        Column("config", JSON),
        Column("config_digest", TEXT),
        Column("snapshot_before", INTEGER),
        Column("snapshot_after", INTEGER),
        Column("state", TEXT),
        Column("started", TIME),
        Column("finished", TIME),
        Column("figures", JSON),
    ),
)
METRICS = Table(
    "metrics",
    Metric,
    ("run_id", "stage", "name", "step"),
    (
        Column("run_id", TEXT),
        Column("stage", TEXT),
        Column("wheel_turn", INTEGER),
        Column("step", INTEGER),
        Column("name", TEXT),
        Column("value", REAL),
    ),
)
FAILURES = Table(
    "failures",
    Failure,
    ("id",),
    (
        Column("id", TEXT, _failure_id),
        Column("stage", TEXT),
        Column("kind", TEXT),
        Column("reason", TEXT),
        Column("item", JSON),
    ),
)

TABLES: tuple[Table[Any], ...] = (
    FACTS, DOCUMENTS, TASKS, TRAJECTORIES, TURNS, TOOL_CALLS, SCORES, EXAMPLES, CHECKS, COMPLETIONS, POLICIES, RUNS, METRICS, FAILURES,
)  # fmt: skip
"""Every table of the lake."""

TABLE_OF: dict[type, Table[Any]] = {table.record: table for table in TABLES if table not in (TURNS, TOOL_CALLS)}
"""The table of a kind of record."""
