"""The tasks of an evaluation suite: under the suite's name, with its verifier, and marked as for evaluation only.

A task in a suite has its own key, so the same question may be in several suites and in training too; its origin is kept, because
contamination is checked by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warehouse.records import Task

SUITE = "suite"
"""Key in a task's provenance of the suite it belongs to. Such a task is evaluated on and never trained on."""
ORIGIN = "origin"
"""Key in a task's provenance of its key before it entered the suite."""


def enter_suite(
    task: Task, suite: str, environment: str | None = None, verifier: str | None = None, rollout: dict[str, Any] | None = None
) -> Task:
    """The task as a member of `suite`; environment and verifier are its own unless given."""
    marks: dict[str, Any] = {SUITE: suite, ORIGIN: task.key}
    marks |= {"verifier": verifier} if verifier else {}
    marks |= {"rollout": rollout} if rollout else {}
    return replace(
        task,
        key=f"{suite}-{task.key}",
        split=suite,
        environment=environment or task.environment,
        provenance={**task.provenance, **marks},
    )


def suite_of(task: Task) -> str | None:
    """The suite of a task; None if it is in none."""
    named = task.provenance.get(SUITE)
    return named if isinstance(named, str) else None


def origin_of(task: Task) -> str:
    """The key that a task had before it entered a suite."""
    return str(task.provenance.get(ORIGIN, task.key))
