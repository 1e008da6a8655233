"""Open a home's lake, read-only without a lock or for upkeep, and look up its policies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.suites.tasks import suite_of
from flows.config import FlywheelConfig
from flows.variants import Variant
from warehouse import Lake, Policy, Task
from warehouse.errors import RequestError
from warehouse.storage import Place

_OF_STAGE = re.compile(rf"t([1-9]\d*)-(cpt|sft|rl)(?:-({'|'.join(Variant)}))?")


def open_lake(home: Path) -> Lake:
    """Open the lake of `home` read-only. Raise RequestError if there is none."""
    _check(home)
    return Lake(home, read_only=True)


@contextmanager
def reading(home: Path) -> Iterator[Lake | None]:
    """Open the lake of `home` read-only; yields None if there is none yet."""
    if not (home / "lake").is_dir():
        yield None
        return
    with Lake(home, read_only=True) as lake:
        yield lake


def open_to_keep(home: Path) -> Lake:
    """Open the lake of `home` for upkeep. Raise RequestError if there is none."""
    _check(home)
    return Lake(home)


def place_of(home: Path) -> Place:
    """Return the location of the lake of `home`. Raise RequestError if there is none."""
    _check(home)
    return Place.of(home)


def policy_of(lake: Lake, policy_id: str) -> Policy:
    """Return a policy by id. Raise RequestError with the existing ids and the command that makes it if it is missing."""
    known, home = {policy.id: policy for policy in lake.policies()}, lake.place.home
    if policy_id not in known:
        has = f"it has {', '.join(sorted(known))}" if known else f"it has none, and `flywheel init --home {home}` makes the first"
        maker = maker_of(policy_id, home)
        makes = f"; `{maker}` makes it" if maker is not None and known else ""
        raise RequestError(f"{home} has no policy {policy_id!r}; {has}{makes}.")
    return known[policy_id]


def maker_of(policy_id: str, home: Path) -> str | None:
    """Return the command that makes a policy, or None for an id that the pipeline does not assign."""
    if policy_id == "t0-init":
        return f"flywheel init --home {home}"
    found = _OF_STAGE.fullmatch(policy_id)
    if found is None:
        return None
    turn, stage, variant = found.groups()
    return f"flywheel train {stage} --home {home} --turn {turn}" + (f" --variant {variant}" if variant else "")


def champion_of(lake: Lake, before: int | None = None) -> Policy | None:
    """Return the policy promoted last, or last before an iteration."""
    promoted = lake.policies("promoted")
    return max((p for p in promoted if before is None or p.wheel_turn < before), key=lambda p: p.wheel_turn, default=None)


def by_suite(tasks: Iterable[Task], config: FlywheelConfig | None) -> tuple[dict[str, list[Task]], list[Task]]:
    """Split tasks by suite (configured or named by a task) and return them with the tasks that may be trained on."""
    suites: dict[str, list[Task]] = {} if config is None else {name: [] for name in config.evaluation.all_suites}
    trained: list[Task] = []
    for task in tasks:
        suite = suite_of(task) or (task.split if task.split in suites else None)
        (trained if suite is None else suites.setdefault(suite, [])).append(task)
    return suites, trained


def _check(home: Path) -> None:
    if not (home / "lake").is_dir():
        raise RequestError(f"{home} has no lake; create one with `flywheel run --home {home}`, or choose another folder with --home.")
