"""Tasks of an evaluation suite: named by the suite, with its verifier, and marked as evaluation only.

A task in a suite has its own key, so the same question may be in several suites and in training too. The original key is kept for
contamination checks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warehouse.records import Task

SUITE = "suite"
"""Key in a task's provenance: the suite that it belongs to. Such a task is never trained on."""
ORIGIN = "origin"
"""Key in a task's provenance: its key before it entered the suite."""


def enter_suite(
    task: Task, suite: str, environment: str | None = None, verifier: str | None = None, rollout: dict[str, Any] | None = None
) -> Task:
    """Return the task as a member of `suite`, with its own environment and verifier unless given."""
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
    """Return the suite of a task, or None."""
    named = task.provenance.get(SUITE)
    return named if isinstance(named, str) else None


def origin_of(task: Task) -> str:
    """Return the key that a task had before it entered a suite."""
    return str(task.provenance.get(ORIGIN, task.key))
