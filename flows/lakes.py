"""The lake of a home: opened to read without a lock, so that a question never stops a run, or to keep it; and whom to find in it."""

from __future__ import annotations

from pathlib import Path

from warehouse import Lake, Policy
from warehouse.errors import RequestError
from warehouse.storage import Place


def open_lake(home: Path) -> Lake:
    """The lake of `home`, read-only. Raises RequestError where there is none."""
    _check(home)
    return Lake(home, read_only=True)


def open_to_keep(home: Path) -> Lake:
    """The lake of `home` for its upkeep. Raises RequestError where there is none: upkeep makes no lake."""
    _check(home)
    return Lake(home)


def place_of(home: Path) -> Place:
    """Where the lake of `home` lies. Raises RequestError where there is none."""
    _check(home)
    return Place.of(home)


def policy_of(lake: Lake, policy_id: str) -> Policy:
    """The policy of that id. Raises RequestError, naming those that exist, where there is none."""
    known = {policy.id: policy for policy in lake.policies()}
    if policy_id not in known:
        has = f"it has {', '.join(sorted(known))}" if known else "`flywheel init` makes its first"
        raise RequestError(f"{lake.place.home} has no policy {policy_id!r}; {has}.")
    return known[policy_id]


def champion_of(lake: Lake, before: int | None = None) -> Policy | None:
    """The policy that was promoted last, or last before a turn; None where there is none yet."""
    promoted = lake.policies("promoted")
    return max((p for p in promoted if before is None or p.wheel_turn < before), key=lambda p: p.wheel_turn, default=None)


def _check(home: Path) -> None:
    if not (home / "lake").is_dir():
        raise RequestError(f"{home} holds no lake; make one with `flywheel run --home {home}`, or name another folder with --home.")
