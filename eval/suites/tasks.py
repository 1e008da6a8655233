"""The tasks of an evaluation suite: under the suite's name, with its verifier, and marked as for evaluation only.

A task in a suite has a key of its own, so that the same question may stand in several suites and in training too; where it came from is
kept, for that is what contamination is looked for by.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warehouse.records import Task

SUITE = "suite"
"""Where a task's provenance names the suite that it was entered into. What bears it is evaluated on and never trained on."""
ORIGIN = "origin"
"""Where the key stands that the task had before."""


def enter_suite(
    task: Task, suite: str, environment: str | None = None, verifier: str | None = None, rollout: dict[str, Any] | None = None
) -> Task:
    """The task as `suite` holds it; without an environment or a verifier, its own."""
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
    """The suite that a task was entered into; None for one that was not."""
    named = task.provenance.get(SUITE)
    return named if isinstance(named, str) else None


def origin_of(task: Task) -> str:
    """The key that a task had before it was entered into a suite."""
    return str(task.provenance.get(ORIGIN, task.key))
