"""Proof of imported tasks: the verifier takes each accepted answer and refuses a wrong one; the rest is quarantined with the reason.

A task that cannot be judged, or whose own answer fails, would give nothing but invalid or failed trajectories. Programs run in sandboxes,
two or three for each task, in parallel and for a limited time; tasks that are left then are admitted unproven, and counted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from eval.graders.code import read_tests
from eval.graders.verifiers import Grader
from eval.suites.validation import subject_of, why_not_proven
from flows.data.imports import PLACE
from rl.terminal import say
from warehouse import Failure, Task
from warehouse.bounds import read_json
from warehouse.errors import RequestError
from warehouse.importers.tasks import broken_row

PROOF_SECONDS = 600.0
"""For how long proofs of code are begun."""
_SAID_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Proof:
    """The tasks that are admitted, why others are not, and how many of the admitted were only read."""

    proven: list[Task]
    failures: list[Failure]
    unproven: int = 0


Fault = tuple[str, str] | None
"""The kind of a failure and its reason."""


def prove(tasks: Sequence[Task], grader: Grader | None, seconds: float = PROOF_SECONDS) -> Proof:
    """Try the answers of every task; without a grader there is none to try."""
    if grader is None:
        return Proof(list(tasks), [])
    others = [*tasks[1:], *tasks[:1]]
    if grader.name != "code":
        return _proof(tasks, [_fault(task, other, grader) for task, other in zip(tasks, others, strict=True)], 0)
    end = time.monotonic() + seconds

    def fault(pair: tuple[Task, Task]) -> tuple[Fault, bool]:
        unreadable = _unreadable(pair[0])
        if unreadable is not None or time.monotonic() > end:
            return unreadable, unreadable is None
        try:
            return _fault(*pair, grader), False
        except RequestError:  # this machine grants no sandbox
            return None, True

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(_reported(pool.map(fault, zip(tasks, others, strict=True)), len(tasks)))
    return _proof(tasks, [one for one, _ in found], sum(skipped for _, skipped in found))


def _proof(tasks: Sequence[Task], faults: Sequence[Fault], unproven: int) -> Proof:
    kept = [task for task, fault in zip(tasks, faults, strict=True) if fault is None]
    failed = [(task, fault) for task, fault in zip(tasks, faults, strict=True) if fault is not None]
    failures = [replace(broken_row(**task.provenance[PLACE], reason=why, text=task.question), kind=kind) for task, (kind, why) in failed]
    return Proof(kept, failures, unproven)


def _fault(task: Task, other: Task, grader: Grader) -> Fault:
    try:
        why = why_not_proven(grader, subject_of(task, grader), subject_of(other, grader))
    except ValueError as error:
        return "not_judgeable", f"the verifier {grader.name} cannot judge it: {error}"
    return None if why is None else ("not_proven", f"the verifier {grader.name} cannot tell right from wrong there: {why}")


def _unreadable(task: Task) -> Fault:
    """The fault of a task of code whose tests cannot be read."""
    try:
        for tests in task.answers:
            read_tests(read_json(tests))
    except ValueError as error:
        return "not_judgeable", f"the verifier code cannot judge it: {error}"
    return None


def _reported(found: Iterator[tuple[Fault, bool]], count: int) -> Iterator[tuple[Fault, bool]]:
    """What is found, with a line on the standard error every few seconds."""
    said = time.monotonic()
    for number, one in enumerate(found, start=1):
        if time.monotonic() - said > _SAID_SECONDS:
            said = time.monotonic()
            say(f"proving tasks: {number} of {count}", to=sys.stderr)
        yield one
