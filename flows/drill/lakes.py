"""What a drill reads in a lake: which trajectories are committed, and whether the lake agrees with itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flows.plan import gate_id
from warehouse import Lake
from warehouse.errors import RequestError
from warehouse.schema import TABLES, TOOL_CALLS, TURNS

KEYS = {table.name: table.key for table in TABLES} | {
    TURNS.name: ("trajectory_id", "index"),
    TOOL_CALLS.name: ("trajectory_id", "turn_index", "call_index"),
}
"""The columns that tell the rows of each table apart."""

T = TypeVar("T")

COMMITTED = """
SELECT t.id, md5(concat_ws(' ', t.prompt_ids::VARCHAR, u.tokens)) AS digest FROM trajectories t LEFT JOIN (
    SELECT trajectory_id, string_agg(concat_ws(' ', action_ids::VARCHAR, action_logprobs::VARCHAR, observation_ids::VARCHAR), ' '
        ORDER BY "index") AS tokens
    FROM turns GROUP BY trajectory_id
) u ON u.trajectory_id = t.id
"""

BROKEN = """
WITH found AS (
    SELECT trajectory_id, count(*) AS n, max("index") + 1 AS length, sum(len(action_ids)) AS actions, sum(len(observation_ids)) AS observed,
        bool_and(len(action_ids) = len(action_logprobs) AND len(action_ids) > 0) AS whole
    FROM turns GROUP BY trajectory_id
)
SELECT coalesce(t.id, f.trajectory_id) AS id FROM trajectories t FULL JOIN found f ON f.trajectory_id = t.id
WHERE t.id IS NULL OR t.n_turns <> coalesce(f.n, 0) OR f.length <> f.n OR NOT f.whole
    OR t.action_tokens <> coalesce(f.actions, 0) OR t.observation_tokens <> coalesce(f.observed, 0)
"""
"""Trajectories that lack turns or tokens, and turns that lack their trajectory."""

ORPHANS = "SELECT count(*) AS n FROM {table} x ANTI JOIN trajectories t ON t.id = x.trajectory_id"


def finished(home: Path, turns: int) -> bool:
    """Whether the wheel in `home` has made its turns."""
    return _read(home, lambda lake: bool(lake.runs("id = ? AND state = 'completed'", [gate_id(turns)]))) or False


def committed(lake: Lake) -> dict[str, str]:
    """The trajectories that the lake has at this moment: a digest over their tokens and log-probabilities, by id."""
    return {row["id"]: row["digest"] for row in lake.query(COMMITTED).to_pylist()}


def committed_at(home: Path) -> dict[str, str]:
    """Those of the lake of `home`; none where it is not made yet."""
    return _read(home, committed) or {}


def _read(home: Path, read: Callable[[Lake], T]) -> T | None:
    """What `read` finds in the lake of `home`; None where there is none yet, or one over whose making its maker died."""
    if not (home / "lake").is_dir():
        return None
    try:
        with Lake(home, read_only=True) as lake:
            return read(lake)
    except RequestError:
        return None


def faults_of(lake: Lake) -> list[str]:
    """In what a lake does not agree with itself: a sentence each. Every row of every table is counted, tokens are read."""
    told = []
    for table, key in KEYS.items():
        columns = ", ".join(f'"{name}"' for name in key)
        double = _count(lake, f"SELECT count(*) - count(DISTINCT ({columns})) AS n FROM {table}")
        if double:
            told.append(f"{double} rows of {table} are double")
    broken = lake.query(BROKEN).to_pylist()
    if broken:
        told.append(f"{len(broken)} trajectories lack turns or tokens, the first is {broken[0]['id']}")
    for table in ("scores", "reward_parts", "tool_calls"):
        orphans = _count(lake, ORPHANS.format(table=table))
        if orphans:
            told.append(f"{orphans} rows of {table} are of no trajectory")
    unfinished = [run.id for run in lake.runs("state <> 'completed'")]
    return told + ([f"{', '.join(unfinished)} did not end"] if unfinished else [])


def _count(lake: Lake, query: str) -> int:
    return int(lake.query(query).to_pylist()[0]["n"])
