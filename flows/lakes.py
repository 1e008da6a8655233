"""The lake of a home, opened read-only without a lock or for upkeep; and the policies in it."""

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
    """The lake of `home`, read-only. Raises RequestError if there is none."""
    _check(home)
    return Lake(home, read_only=True)


@contextmanager
def reading(home: Path) -> Iterator[Lake | None]:
    """The lake of `home`, read-only; None if there is none yet."""
    if not (home / "lake").is_dir():
        yield None
        return
    with Lake(home, read_only=True) as lake:
        yield lake


def open_to_keep(home: Path) -> Lake:
    """The lake of `home`, for upkeep. Raises RequestError if there is none."""
    _check(home)
    return Lake(home)


def place_of(home: Path) -> Place:
    """The location of the lake of `home`. Raises RequestError if there is none."""
    _check(home)
    return Place.of(home)


def policy_of(lake: Lake, policy_id: str) -> Policy:
    """The policy with that id. Raises RequestError, naming those that exist and the command that makes it."""
    known, home = {policy.id: policy for policy in lake.policies()}, lake.place.home
    if policy_id not in known:
        has = f"it has {', '.join(sorted(known))}" if known else f"it has none, and `flywheel init --home {home}` makes the first"
        maker = maker_of(policy_id, home)
        makes = f"; `{maker}` makes it" if maker is not None and known else ""
        raise RequestError(f"{home} has no policy {policy_id!r}; {has}{makes}.")
    return known[policy_id]


def maker_of(policy_id: str, home: Path) -> str | None:
    """The command that makes the policy with that id; None for an id that the pipeline does not give."""
    if policy_id == "t0-init":
        return f"flywheel init --home {home}"
    found = _OF_STAGE.fullmatch(policy_id)
    if found is None:
        return None
    turn, stage, variant = found.groups()
    return f"flywheel train {stage} --home {home} --turn {turn}" + (f" --variant {variant}" if variant else "")


def champion_of(lake: Lake, before: int | None = None) -> Policy | None:
    """The policy that was promoted last, or last before an iteration."""
    promoted = lake.policies("promoted")
    return max((p for p in promoted if before is None or p.wheel_turn < before), key=lambda p: p.wheel_turn, default=None)


def by_suite(tasks: Iterable[Task], config: FlywheelConfig | None) -> tuple[dict[str, list[Task]], list[Task]]:
    """The tasks of every suite, those of `config` and those that tasks were entered into, and all that may be trained on."""
    suites: dict[str, list[Task]] = {} if config is None else {name: [] for name in config.evaluation.all_suites}
    trained: list[Task] = []
    for task in tasks:
        suite = suite_of(task) or (task.split if task.split in suites else None)
        (trained if suite is None else suites.setdefault(suite, [])).append(task)
    return suites, trained


def _check(home: Path) -> None:
    if not (home / "lake").is_dir():
        raise RequestError(f"{home} holds no lake; make one with `flywheel run --home {home}`, or name another folder with --home.")
