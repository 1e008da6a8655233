"""A disturbed home and the undisturbed one: what must be equal, and what must only be near."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from flows.plan import gate_id, synthesis_id
from flows.results import Solved, paired, probability
from warehouse import Lake
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.schema import TABLES, TOOL_CALLS, TURNS

Rates = dict[tuple[str, str], dict[str, Any]]
"""Rows of the view `evaluations` over all hops, by policy and suite."""

BADLY_INVALID = "SELECT count(*) AS n FROM trajectories WHERE outcome = 'invalid' AND (reward IS NOT NULL OR error IS NULL)"


KEYS = {table.name: table.key for table in TABLES} | {
    TURNS.name: ("trajectory_id", "index"),
    TOOL_CALLS.name: ("trajectory_id", "turn_index", "call_index"),
}

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

REWARDED = """
SELECT t.id, o.outcome = 'success' AS solved FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
WHERE t.stage = 'rl' AND o.outcome <> 'invalid'
"""
UNLIKELY = 0.01
"""Up to this p-value two wheels are not equally good; faults change what is sampled, and so a few attempts."""

ORPHANS = "SELECT count(*) AS n FROM {table} x ANTI JOIN trajectories t ON t.id = x.trajectory_id"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    held: bool
    found: str


@dataclass(frozen=True, slots=True)
class Standard:
    """What the undisturbed home has: digests of the first turn's tasks and examples, its policies' success, RL's attempts."""

    tasks: dict[str, str]
    examples: dict[str, str]
    rates: Rates
    rewarded: Solved

    @classmethod
    def of(cls, home: Path) -> Standard:
        with Lake(home, read_only=True) as lake:
            return cls(*_made_in_turn_one(lake), rates_of(lake), rewarded_of(lake))


def compare(home: Path, standard: Standard, noted: Mapping[str, str]) -> list[Check]:
    """Every check; `noted` are the digests of trajectories that were committed before the faults."""
    with Lake(home, read_only=True) as lake:
        tasks, examples = _made_in_turn_one(lake)
        rates = rates_of(lake)
        return [
            consistent(faults_of(lake)),
            kept(noted, committed(lake)),
            equal("tasks", tasks, standard.tasks),
            equal("examples", examples, standard.examples),
            near(rates, standard.rates),
            as_rewarded(rewarded_of(lake), standard.rewarded),
            counted(rates, _suite_sizes(lake), int(lake.query(BADLY_INVALID).to_pylist()[0]["n"])),
        ]


def consistent(disagreements: Sequence[str]) -> Check:
    return Check("lake", not disagreements, "; ".join(disagreements) or "no row double, no turn or token missing")


def kept(noted: Mapping[str, str], now: Mapping[str, str]) -> Check:
    lost = sorted(noted.keys() - now.keys())
    other = sorted(key for key in noted.keys() & now.keys() if now[key] != noted[key])
    wrong = _listed({"lost": lost, "other than they were": other})
    return Check("committed", not wrong, wrong or f"all {len(noted)} of {len(now)}")


def equal(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Check:
    other = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
    wrong = _listed({"missing": sorted(theirs.keys() - ours.keys()), "too many": sorted(ours.keys() - theirs.keys()), "other": other})
    return Check(name, not wrong and bool(theirs), wrong or f"{len(ours)} equal")


def near(ours: Rates, theirs: Rates) -> Check:
    """Success within the 95 % interval (Wilson) of the undisturbed one's."""
    rows = {key: _compared(key, ours.get(key), rate) for key, rate in sorted(theirs.items())}
    outside = [rows[key] for key in rows if not _is_within(ours.get(key), theirs[key])]
    return Check("policy", bool(rows) and not outside, "; ".join(outside or rows.values()))


def as_rewarded(ours: Solved, theirs: Solved) -> Check:
    """As many attempts of RL succeed (McNemar, exact), of which some must: nothing equals nothing."""
    test = paired(theirs, ours)
    if test is None or not any(theirs.values()):
        return Check("reward", False, "the undisturbed RL is never rewarded, so there is nothing to lose: choose a profile that learns")
    rewarded, before = (round(share * test.tasks) for share in (test.after, test.before))
    found = f"{rewarded} of {test.tasks} attempts of RL succeed, undisturbed {before} ({probability(test.p_value)})"
    return Check("reward", test.p_value > UNLIKELY, found)


def counted(rates: Rates, sizes: Mapping[str, int], badly: int) -> Check:
    """Every policy was tried on every task of the suite; the invalid tries have an error and no reward."""
    wrong = [
        f"{policy} was tried on {row['tasks']} of {sizes.get(suite)} tasks of {suite}"
        for (policy, suite), row in sorted(rates.items())
        if row["tasks"] != sizes.get(suite)
    ]
    wrong += [f"{badly} invalid ones have a reward or no error"] if badly else []
    invalid, tried = (sum(row[name] for row in rates.values()) for name in ("invalid", "tasks"))
    return Check("invalid", not wrong and tried > 0, "; ".join(wrong) or f"{invalid} of {tried}")


def nothing_left(processes: Sequence[str], files: Sequence[Path]) -> Check:
    wrong = _listed({"processes": processes, "files": files})
    return Check("left behind", not wrong, wrong or "nothing")


def rates_of(lake: Lake) -> Rates:
    rows = lake.query("SELECT turn, policy, suite, tasks, invalid, success, low, high FROM evaluations WHERE hops IS NULL").to_pylist()
    return {(row["policy"], row["suite"]): row for row in rows}


def rewarded_of(lake: Lake) -> dict[str, bool]:
    """Whether each valid attempt succeeded."""
    return {row["id"]: row["solved"] for row in lake.query(REWARDED).to_pylist()}


def _made_in_turn_one(lake: Lake) -> tuple[dict[str, str], dict[str, str]]:
    """Digests by key and id, as they were when the first turn's synthesis was done."""
    at = next(run.snapshot_after for run in lake.runs("id = ?", [synthesis_id(1)]))
    examples = {example.id: digest(asdict(example)) for example in lake.examples(at=at)}
    return {task.key: task.digest for task in lake.tasks(at=at)}, examples


def _suite_sizes(lake: Lake) -> dict[str, int]:
    rows = lake.query("SELECT split, count(*) AS n FROM tasks GROUP BY split").to_pylist()
    return {row["split"]: row["n"] for row in rows}


def _is_within(ours: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> bool:
    if ours is None or ours["success"] is None or theirs["success"] is None:
        return False
    return bool(theirs["low"] <= ours["success"] <= theirs["high"])


def _compared(key: tuple[str, str], ours: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> str:
    policy, suite = key
    if theirs["success"] is None:
        return f"{policy} was judged on no task of {suite} undisturbed"
    value = "–" if ours is None or ours["success"] is None else f"{100 * ours['success']:.1f}"
    interval = f"{100 * theirs['low']:.1f}–{100 * theirs['high']:.1f}"
    return f"{policy} {value} on {suite}, undisturbed {100 * theirs['success']:.1f} ({interval})"


def _listed(wrong: Mapping[str, Sequence[object]]) -> str:
    return "; ".join(f"{len(found)} {what}, the first {found[0]}" for what, found in wrong.items() if found)


def finished(home: Path, turns: int) -> bool:
    return _read(home, lambda lake: bool(lake.runs("id = ? AND state = 'completed'", [gate_id(turns)]))) or False


def committed(lake: Lake) -> dict[str, str]:
    """Digests over tokens and log-probabilities, by id."""
    return {row["id"]: row["digest"] for row in lake.query(COMMITTED).to_pylist()}


def committed_at(home: Path) -> dict[str, str]:
    return _read(home, committed) or {}


def _read(home: Path, read: Callable[[Lake], T]) -> T | None:
    """None where there is no lake yet, or one over whose making its maker died."""
    if not (home / "lake").is_dir():
        return None
    try:
        with Lake(home, read_only=True) as lake:
            return read(lake)
    except RequestError:
        return None


def faults_of(lake: Lake) -> list[str]:
    """Where a lake does not agree with itself."""
    found = []
    for table, key in KEYS.items():
        columns = ", ".join(f'"{name}"' for name in key)
        double = _count(lake, f"SELECT count(*) - count(DISTINCT ({columns})) AS n FROM {table}")
        if double:
            found.append(f"{double} rows of {table} are double")
    broken = lake.query(BROKEN).to_pylist()
    if broken:
        found.append(f"{len(broken)} trajectories lack turns or tokens, the first is {broken[0]['id']}")
    for table in ("scores", "reward_parts", "tool_calls"):
        orphans = _count(lake, ORPHANS.format(table=table))
        if orphans:
            found.append(f"{orphans} rows of {table} are of no trajectory")
    unfinished = [run.id for run in lake.runs("state <> 'completed'")]
    return found + ([f"{', '.join(unfinished)} did not end"] if unfinished else [])


def _count(lake: Lake, query: str) -> int:
    return int(lake.query(query).to_pylist()[0]["n"])
