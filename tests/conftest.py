"""Configuration of all tests: libraries are configured as by the command line, and files without selected tests are not imported."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings

from flows.runtime import import_safely, quiet_libraries

SHARED = Path(__file__).parents[2] / "shared" / "data"
if SHARED.is_dir():
    os.environ.setdefault("FLYWHEEL_DATA", str(SHARED))  # public data that this machine has already, beside the repository

quiet_libraries()
import_safely()
gc.disable()  # a fifth of the time that imports take; what they made is there for good, and is not looked at again
settings.register_profile("untimed", deadline=None)  # how long an example takes says more of the machine than of the code
settings.load_profile("untimed")

NO_SANDBOX = "no sandbox here"
"""What the reason begins with by which tests that need a sandbox are skipped."""
MARKS = {"engine", "slow", "end_to_end", "long"}
OF_ALL = re.compile(r"^pytestmark = .*$", re.MULTILINE)
NAMED = re.compile(r"\bpytest\.mark\.(\w+)")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries look for leaks at the end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports that the sandbox was not tested on a machine that grants none, since the run is green without it."""
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    untried = [reason for reason in skipped if NO_SANDBOX in reason]
    if untried:
        terminalreporter.section("the sandbox was not tried", yellow=True)
        terminalreporter.line(
            f"{len(untried)} tests were skipped, for this machine grants none; `flywheel doctor` says what to do about it."
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files none of whose tests have the wanted marks: trainers and servers take seconds to import."""
    wanted = config.option.markexpr
    if not wanted or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    expression = Expression.compile(wanted)
    possible = marks_of_tests(collection_path.read_text())
    return None if any(expression.evaluate(lambda name, marks=marks, **_: name in marks) for marks in possible) else True


def marks_of_tests(text: str) -> Iterator[set[str]]:
    """The sets of marks that tests of a file may have: those of the whole file, and any of the others that it names."""
    whole = MARKS & {mark for line in OF_ALL.findall(text) for mark in NAMED.findall(line)}
    some = sorted(MARKS & set(NAMED.findall(text)) - whole)
    for count in range(len(some) + 1):
        for marks in combinations(some, count):
            yield whole.union(marks)
