"""A disturbed home beside the undisturbed one: what must be the same, and what must only be near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.drill.lakes import committed, faults_of
from flows.plan import synthesis_id
from warehouse import Lake
from warehouse.digests import digest

Rates = dict[tuple[str, str], dict[str, Any]]
"""Rows of the view `evaluations` over all hops, by policy and suite."""

BADLY_INVALID = "SELECT count(*) AS n FROM trajectories WHERE outcome = 'invalid' AND (reward IS NOT NULL OR error IS NULL)"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at in one home: its name, whether it held, and what was found, in a few words."""

    name: str
    held: bool
    found: str


@dataclass(frozen=True, slots=True)
class Standard:
    """What the undisturbed home has: digests of the first turn's tasks and examples by key and id, and how good its policies are."""

    tasks: dict[str, str]
    examples: dict[str, str]
    rates: Rates

    @classmethod
    def of(cls, home: Path) -> Standard:
        """That of the lake of `home`."""
        with Lake(home, read_only=True) as lake:
            return cls(*_made_in_turn_one(lake), rates_of(lake))


def compare(home: Path, standard: Standard, seen: Mapping[str, str]) -> list[Check]:
    """Every check of a disturbed home; `seen` are the digests of trajectories that were committed before its faults."""
    with Lake(home, read_only=True) as lake:
        tasks, examples = _made_in_turn_one(lake)
        rates = rates_of(lake)
        return [
            consistent(faults_of(lake)),
            kept(seen, committed(lake)),
            equal("tasks", tasks, standard.tasks),
            equal("examples", examples, standard.examples),
            near(rates, standard.rates),
            counted(rates, _suite_sizes(lake), int(lake.query(BADLY_INVALID).to_pylist()[0]["n"])),
        ]


def consistent(told: Sequence[str]) -> Check:
    """The lake agrees with itself."""
    return Check("lake", not told, "; ".join(told) or "no row double, no turn or token missing")


def kept(seen: Mapping[str, str], now: Mapping[str, str]) -> Check:
    """What was committed before a fault is there, with the same tokens."""
    lost = sorted(seen.keys() - now.keys())
    other = sorted(key for key in seen.keys() & now.keys() if now[key] != seen[key])
    wrong = _listed({"lost": lost, "other than they were": other})
    return Check("committed", not wrong, wrong or f"all {len(seen)} of {len(now)}")


def equal(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Check:
    """The same digests under the same keys."""
    other = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
    wrong = _listed({"missing": sorted(theirs.keys() - ours.keys()), "too many": sorted(ours.keys() - theirs.keys()), "other": other})
    return Check(name, not wrong and bool(theirs), wrong or f"{len(ours)} equal")


def near(ours: Rates, theirs: Rates) -> Check:
    """Every policy's success lies within the 95 % interval (Wilson) of the undisturbed one's on the same suite."""
    told = {key: _told(key, ours.get(key), rate) for key, rate in sorted(theirs.items())}
    outside = [told[key] for key in told if not _is_within(ours.get(key), theirs[key])]
    return Check("policy", bool(told) and not outside, "; ".join(outside or told.values()))


def counted(rates: Rates, sizes: Mapping[str, int], badly: int) -> Check:
    """Every policy was tried on every task of the suite; the invalid tries are counted, and have an error and no reward."""
    wrong = [
        f"{policy} was tried on {row['tasks']} of {sizes.get(suite)} tasks of {suite}"
        for (policy, suite), row in sorted(rates.items())
        if row["tasks"] != sizes.get(suite)
    ]
    wrong += [f"{badly} invalid ones have a reward or no error"] if badly else []
    invalid, tried = (sum(row[name] for row in rates.values()) for name in ("invalid", "tasks"))
    return Check("invalid", not wrong and tried > 0, "; ".join(wrong) or f"{invalid} of {tried}")


def nothing_left(processes: Sequence[str], files: Sequence[Path]) -> Check:
    """No process that the run started lives, no file that it held outside its home lies there."""
    wrong = _listed({"processes": processes, "files": files})
    return Check("left behind", not wrong, wrong or "nothing")


def rates_of(lake: Lake) -> Rates:
    """How good each policy is on each suite."""
    rows = lake.query("SELECT turn, policy, suite, tasks, invalid, success, low, high FROM evaluations WHERE hops IS NULL").to_pylist()
    return {(row["policy"], row["suite"]): row for row in rows}


def _made_in_turn_one(lake: Lake) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of the tasks and examples that there were when the first turn's synthesis was done."""
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


def _told(key: tuple[str, str], ours: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> str:
    policy, suite = key
    if theirs["success"] is None:
        return f"{policy} was judged on no task of {suite} undisturbed"
    value = "–" if ours is None or ours["success"] is None else f"{100 * ours['success']:.1f}"
    interval = f"{100 * theirs['low']:.1f}–{100 * theirs['high']:.1f}"
    return f"{policy} {value} on {suite}, undisturbed {100 * theirs['success']:.1f} ({interval})"


def _listed(wrong: Mapping[str, Sequence[object]]) -> str:
    """How many there are of each and which is the first; nothing where there are none."""
    return "; ".join(f"{len(found)} {what}, the first {found[0]}" for what, found in wrong.items() if found)
