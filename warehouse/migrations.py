"""The version of a lake's tables, and the steps from each version to the next.

A lake is brought up to date when it is opened for writing: forward only, in one transaction, and each step does nothing where it has
been done. The table `migrations` keeps one row for each step taken; a lake without it is of a time before versions. Views, macros and
comments belong to no version: they are made anew wherever they differ from those of this program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from warehouse.columns import RECORDED
from warehouse.connections import CATALOG
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.old_examples import structure_examples
from warehouse.schema import TABLES
from warehouse.storage import quoted
from warehouse.views import MACROS, VIEWS

Cursor = duckdb.DuckDBPyConnection

UNVERSIONED = 0
"""The version of a lake without the table `migrations`."""


@dataclass(frozen=True, slots=True)
class Migration:
    """The step to the version of its place in `MIGRATIONS`: what it brings, and how.

    The `statements` come first, then `convert`, which does what SQL cannot say, then the statements `after`.
    """

    brings: str
    statements: tuple[str, ...]
    convert: Callable[[Cursor], None] | None = None
    after: tuple[str, ...] = ()


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        "checks, completions, proofs of tasks, provenance of trajectories",
        (
            "CREATE TABLE IF NOT EXISTS checks (sample VARCHAR, kind VARCHAR, checker VARCHAR, version VARCHAR, accepted BOOLEAN, "
            "reason VARCHAR, recorded TIMESTAMP)",
            "CREATE TABLE IF NOT EXISTS completions (id VARCHAR, teacher VARCHAR, request JSON, text VARCHAR, ending VARCHAR, "
            "prompt_tokens BIGINT, completion_tokens BIGINT, attempts BIGINT, seconds DOUBLE, recorded TIMESTAMP)",
            "ALTER TABLE tasks ADD COLUMN IF NOT EXISTS proofs JSON DEFAULT '{}'",
            "ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS provenance JSON DEFAULT '{}'",
        ),
    ),
    Migration(
        "a row for every call, versions of the weights token by token, counts of calls and tokens, pins",
        (
            "CREATE TABLE IF NOT EXISTS tool_calls (trajectory_id VARCHAR, turn_index BIGINT, call_index BIGINT, tool VARCHAR, "
            "arguments VARCHAR, outcome VARCHAR, observation VARCHAR, latency_seconds DOUBLE, retries BIGINT, reward DOUBLE, figures JSON, "
            "recorded TIMESTAMP)",
            "CREATE TABLE IF NOT EXISTS pins (name VARCHAR, snapshot BIGINT, query VARCHAR, n_rows BIGINT, digest VARCHAR, "
            "recorded TIMESTAMP)",
            "ALTER TABLE turns ADD COLUMN IF NOT EXISTS policy_versions INTEGER[]",
            "ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS n_calls BIGINT",
            "ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS prompt_tokens BIGINT",
            "ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS action_tokens BIGINT",
            "ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS observation_tokens BIGINT",
            """
            INSERT INTO tool_calls BY NAME
            SELECT trajectory_id, "index" AS turn_index, 0 AS call_index, tool, arguments, tool_outcome AS outcome, observation,
                latency AS latency_seconds, 0 AS retries, reward, '{}' AS figures, recorded
            FROM turns ANTI JOIN (SELECT DISTINCT trajectory_id FROM tool_calls) USING (trajectory_id) WHERE tool IS NOT NULL
            """,
            """
            UPDATE trajectories SET n_calls = counted.n_calls, prompt_tokens = len(prompt_ids), action_tokens = counted.action_tokens,
                observation_tokens = counted.observation_tokens
            FROM (
                SELECT t.id, coalesce(c.n_calls, 0) AS n_calls, coalesce(u.action_tokens, 0) AS action_tokens,
                    coalesce(u.observation_tokens, 0) AS observation_tokens
                FROM trajectories t
                LEFT JOIN (
                    SELECT trajectory_id AS id, count(*) FILTER (tool <> 'answer') AS n_calls FROM tool_calls GROUP BY ALL
                ) c USING (id)
                LEFT JOIN (
                    SELECT trajectory_id AS id, sum(len(action_ids)) AS action_tokens, sum(len(observation_ids)) AS observation_tokens
                    FROM turns GROUP BY ALL
                ) u USING (id)
            ) counted
            WHERE trajectories.id = counted.id AND trajectories.n_calls IS NULL
            """,
        ),
    ),
    Migration(
        "the parts of rewards",
        (
            "CREATE TABLE IF NOT EXISTS reward_parts (trajectory_id VARCHAR, name VARCHAR, weight DOUBLE, value DOUBLE, turns DOUBLE[], "
            "error VARCHAR, recorded TIMESTAMP)",
        ),
    ),
    Migration(
        "which calls are the first of their tool and outcome in a trajectory",
        (
            "ALTER TABLE tool_calls ADD COLUMN IF NOT EXISTS is_first BOOLEAN",
            """
            UPDATE tool_calls SET is_first = placed.place = 1
            FROM (
                SELECT trajectory_id, turn_index, call_index,
                    row_number() OVER (PARTITION BY trajectory_id, tool, outcome ORDER BY turn_index, call_index) AS place
                FROM tool_calls
            ) placed
            WHERE tool_calls.trajectory_id = placed.trajectory_id AND tool_calls.turn_index = placed.turn_index
                AND tool_calls.call_index = placed.call_index AND tool_calls.is_first IS NULL
            """,
        ),
    ),
    Migration(
        "what steps of reinforcement learnt from",
        ("CREATE TABLE IF NOT EXISTS batches (run_id VARCHAR, step BIGINT, trajectories VARCHAR[], reused VARCHAR[], recorded TIMESTAMP)",),
    ),
    Migration(
        "images, and which of them turns showed",
        (
            "CREATE TABLE IF NOT EXISTS images (digest VARCHAR, media_type VARCHAR, width BIGINT, height BIGINT, data BLOB, "
            "recorded TIMESTAMP)",
            "ALTER TABLE turns ADD COLUMN IF NOT EXISTS images VARCHAR[]",
        ),
    ),
    Migration(
        "examples as parts, in the place of text in tags",
        (
            "ALTER TABLE examples ADD COLUMN IF NOT EXISTS parts "
            "STRUCT(kind VARCHAR, text VARCHAR, learnt BOOLEAN, tool VARCHAR, ids INTEGER[])[]",
        ),
        structure_examples,
        tuple(f"ALTER TABLE examples DROP COLUMN IF EXISTS {name}" for name in ("segments", "token_ids", "loss_mask")),
    ),
    Migration(
        "whose searches find a document",
        (
            "ALTER TABLE documents ADD COLUMN IF NOT EXISTS split VARCHAR",
            """
            UPDATE documents SET split = CASE WHEN starts_with(source, 'world-train-') THEN 'train'
                WHEN starts_with(source, 'world-heldout-') THEN 'heldout' ELSE 'all' END
            WHERE split IS NULL
            """,
        ),
    ),
    Migration(
        "how trajectories searched, counted once",
        (
            "CREATE TABLE IF NOT EXISTS search_counts (trajectory_id VARCHAR, searches BIGINT, in_vain BIGINT, retried BIGINT, "
            "same BIGINT, pages BIGINT, words BIGINT, checks BIGINT, recorded TIMESTAMP)",
        ),
    ),
    Migration("what a verifier read as the answer", ("ALTER TABLE scores ADD COLUMN IF NOT EXISTS read VARCHAR",)),
)
"""Every step, the one to version 1 first. Their statements stay as they are once a lake may have taken them."""

VERSION = len(MIGRATIONS)
"""The version that this program reads and writes."""

ROW_GROUP = 20_480
"""Rows of a row group, the unit that is compressed and read at once: a turn is a kilobyte, where DuckDB's 122,880 rows suit numbers."""

_RECORD = (
    "CREATE TABLE IF NOT EXISTS migrations (version BIGINT, brings VARCHAR, definitions VARCHAR, recorded TIMESTAMP)",
    "COMMENT ON TABLE migrations IS 'Steps that brought the tables to their version.'",
    "COMMENT ON COLUMN migrations.version IS 'Version that the step led to.'",
    "COMMENT ON COLUMN migrations.brings IS 'What the step brought.'",
    "COMMENT ON COLUMN migrations.definitions IS 'Digest of the views, macros and comments that were made then.'",
    f"COMMENT ON COLUMN migrations.recorded IS '{RECORDED}'",
)


def state_of(cursor: Cursor) -> tuple[int, str] | None:
    """The lake's version and the digest of its definitions; None for a lake without any table."""
    if not _has(cursor, "migrations"):
        return (UNVERSIONED, "") if _has(cursor, "turns") else None
    newest = "SELECT version, definitions FROM migrations ORDER BY version DESC, recorded DESC LIMIT 1"
    ((version, definitions),) = cursor.execute(newest).fetchall()
    return int(version), str(definitions)


def check_readable(cursor: Cursor, home: str) -> None:
    """Raises `RequestError` where this program cannot read the lake of `home` as it is, and says what to do."""
    version, _ = state_of(cursor) or (UNVERSIONED, "")
    _refuse_newer(version, home)
    if version < VERSION:
        raise RequestError(
            f"The lake in {home} is of version {version} and this program reads version {VERSION}: "
            f"bring it up to date with `flywheel lake migrate --home {home}`."
        )


def migrate(cursor: Cursor, home: str) -> None:
    """Brings the lake to `VERSION` and its definitions to those of this program, within the caller's transaction.

    Raises `RequestError` for a lake of a newer version.
    """
    state = state_of(cursor)
    if state == (VERSION, definitions_digest()):
        return
    version, _ = state or (VERSION, "")
    _refuse_newer(version, home)
    for statement in _RECORD:
        cursor.execute(statement)
    if state is None:
        _create(cursor)
    for number, migration in enumerate(MIGRATIONS[version:], version + 1):
        for statement in migration.statements:
            cursor.execute(statement)
        if migration.convert is not None:
            migration.convert(cursor)
        for statement in migration.after:
            cursor.execute(statement)
        _note(cursor, number, migration.brings)
    if version == VERSION:
        _note(cursor, VERSION, "all tables" if state is None else "views, macros and comments")
    _define(cursor)


def definitions_digest() -> str:
    """Digest of the views, macros and comments of this program."""
    tables = [[table.name, table.comment, [[column.name, column.comment] for column in table.columns]] for table in TABLES]
    views = [[view.name, view.comment, view.sql] for view in VIEWS.values()]
    return digest([tables, views, [[macro.signature, macro.sql] for macro in MACROS.values()]])


def _refuse_newer(version: int, home: str) -> None:
    if version > VERSION:
        raise RequestError(
            f"The lake in {home} is of version {version} and this program knows versions up to {VERSION}: "
            f"use the newer program that wrote it."
        )


def _has(cursor: Cursor, table: str) -> bool:
    try:
        cursor.execute(f"FROM {CATALOG}.{table} LIMIT 0")
    except duckdb.CatalogException:
        return False
    return True


def _create(cursor: Cursor) -> None:
    for table in TABLES:
        cursor.execute(table.ddl)


def _define(cursor: Cursor) -> None:
    cursor.execute(f"CALL {CATALOG}.set_option('parquet_row_group_size', '{ROW_GROUP}')")
    # Its encodings of numbers and text are quicker to write than the first version's, and a fifth smaller.
    cursor.execute(f"CALL {CATALOG}.set_option('parquet_version', '2')")
    for table in TABLES:
        cursor.execute(f"COMMENT ON TABLE {table.name} IS {quoted(table.comment)}")
        for name, comment in [*((column.name, column.comment) for column in table.columns), ("recorded", RECORDED)]:
            cursor.execute(f'COMMENT ON COLUMN {table.name}."{name}" IS {quoted(comment)}')
    for view in VIEWS.values():
        cursor.execute(f"CREATE OR REPLACE VIEW {view.name} AS {view.sql}")
        cursor.execute(f"COMMENT ON VIEW {view.name} IS {quoted(view.comment)}")
    for macro in MACROS.values():
        cursor.execute(f"CREATE OR REPLACE MACRO {macro.signature} AS TABLE {macro.sql}")


def _note(cursor: Cursor, version: int, brings: str) -> None:
    cursor.execute(
        "INSERT INTO migrations VALUES (?, ?, ?, ?)", [version, brings, definitions_digest(), datetime.now(UTC).replace(tzinfo=None)]
    )
