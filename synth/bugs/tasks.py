"""Repository tasks from planted bugs: a package that its tests pass, and a mutation that some of them notice.

    snapshot of the package → mutation → tests in the sandbox → issue that quotes a failing check → task

A mutation becomes a task only if it makes at least one test fail that passed in two runs before, and leaves at least one passing. The
reference patch undoes it. The issue quotes what a test did and what came of it, never the place of the mutation. Test files that notice a
bug are hidden from the policy. All code of the package runs in the sandbox.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from eval.graders.repository import TestRun, make_patch, run_tests, write_snapshot
from synth.bugs.config import STAGE, BugsConfig
from synth.bugs.mutations import Mutation, mutate, mutations
from synth.bugs.packages import Package
from warehouse.digests import digest
from warehouse.records import Failure, Task

AT_ONCE = 2
"""Mutations tested concurrently."""
_QUOTED = 2
"""Failing tests that an issue quotes."""


@dataclass(frozen=True, slots=True)
class Bugs:
    """Tasks of one package, failures of the mutations that were dropped, and the number tried."""

    tasks: Sequence[Task]
    failures: Sequence[Failure]
    tried: int = 0


@dataclass(frozen=True, slots=True)
class _Planted:
    file: str
    mutation: Mutation
    source: bytes


def plant_bugs(package: Package, config: BugsConfig, seed: int, snapshots: Path) -> Bugs:
    """Plant up to `config.count` bugs in a package and store its snapshot below `snapshots`. Raises as `run_tests`."""
    first, second = (run_tests(package.files, package.tests) for _ in range(2)) if package.tests else (None, None)
    if first is None or second is None:
        return Bugs((), [_dropped(package, "no_tests", f"{package.name} has no file test_*.py, *_test.py or tests.py")])
    passing = sorted(test for test, outcome in first.outcomes.items() if outcome == second.outcomes.get(test) == "passed")
    if not passing:
        why = " ".join(first.output.split())[-500:]
        return Bugs((), [_dropped(package, "no_passing_test", f"no test of {package.name} passes before any change: {why}")])
    snapshot = write_snapshot(snapshots, package.name, package.files)
    planted = list(_draw(package, seed))[: config.count * config.tries]
    tasks: list[Task] = []
    failures: list[Failure] = []
    tried = 0
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while planted and len(tasks) < config.count:
            now, planted = planted[:AT_ONCE], planted[AT_ONCE:]
            for made in threads.map(lambda bug: _task(package, bug, passing, snapshot), now):
                tried += 1
                if isinstance(made, Task):
                    tasks.append(made)
                else:
                    failures.append(made)
    return Bugs(tasks[: config.count], failures, tried)


def _draw(package: Package, seed: int) -> Iterator[_Planted]:
    """Yield the package's mutations in a random order in which the kinds take turns."""
    found = [_Planted(file, mutation, package.files[file]) for file in package.modules for mutation in mutations(package.files[file])]
    random.Random(seed).shuffle(found)
    turns = Counter[str]()
    order = []
    for bug in found:
        turns[bug.mutation.kind] += 1
        order.append((turns[bug.mutation.kind], bug))
    for _, bug in sorted(order, key=lambda pair: pair[0]):
        changed = mutate(bug.source, bug.mutation)
        if changed is not None:
            yield _Planted(bug.file, bug.mutation, changed)


def _task(package: Package, bug: _Planted, passing: Sequence[str], snapshot: str) -> Task | Failure:
    broken = {**package.files, bug.file: bug.source}
    run = run_tests(broken, package.tests)
    failing = run.not_passed(passing)
    if not run.outcomes:
        return _dropped(package, "no_outcome", f"no test runs any more ({run.result.ending})", bug)
    if not failing:
        return _dropped(package, "not_noticed", "all tests still pass", bug)
    if len(failing) == len(passing):
        return _dropped(package, "nothing_passes", "no test passes any more", bug)
    question = _issue(package, failing, len(passing), run)
    if question is None:
        return _dropped(package, "no_complaint", "no failing test says what it expected", bug)
    changes = make_patch(package.files, broken)
    task = {
        "snapshot": snapshot,
        "changes": changes,
        "hidden": sorted({test.split("::")[0] for test in failing}),
        "fail_to_pass": list(failing),
        "pass_to_pass": sorted(set(passing) - set(failing)),
    }
    about = {"package": package.name, "mutation": bug.mutation.kind, "function": bug.mutation.function, "source": STAGE}
    key = f"{STAGE}-{package.name}-{digest([snapshot, changes])}"
    return Task(
        key,
        "repository",
        question,
        (),
        provenance={**task, **about, "verifier": "environment"},
        proofs={"patch": make_patch(broken, package.files)},
    )


def _issue(package: Package, failing: Sequence[str], total: int, run: TestRun) -> str | None:
    """Describe what fails, by the statements and messages of failing tests; None if none has both."""
    told = [run.complaints[test] for test in failing if all(run.complaints.get(test, ("",)))]
    if not told:
        return None
    quoted = list(dict.fromkeys((dedent(statement), _stable(message)) for statement, message in told))[:_QUOTED]
    found = "\n\n".join(f"{indent(statement, '    ')}\n\nends with\n\n{indent(message, '    ')}" for statement, message in quoted)
    return (
        f"{package.name} no longer behaves as its tests expect: {len(failing)} of {total} fail. For example\n\n{found}\n\n"
        "Find the fault in the package and correct it. The tests that show it are not among the files."
    )


def _stable(message: str) -> str:
    """The message without addresses, which differ from run to run."""
    return re.sub(r"0x[0-9a-f]+", "0x...", message)


def _dropped(package: Package, kind: str, reason: str, bug: _Planted | None = None) -> Failure:
    item = {"package": package.name}
    if bug is not None:
        item |= {"file": bug.file, "line": str(bug.mutation.line), "function": bug.mutation.function, "mutation": bug.mutation.kind}
    return Failure(STAGE, kind, reason, item)
