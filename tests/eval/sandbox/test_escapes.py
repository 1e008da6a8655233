"""No program gets out of the sandbox or takes more than it is given; the canaries would tell."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from eval.sandbox.sandbox import Sandbox, SandboxConfig, SandboxResult, isolation, python_program
from tests.clock import processor_seconds
from tests.eval.sandbox.canaries import Canaries
from tests.eval.sandbox.escapes import ABUSES, ESCAPES, PRELUDE, REACHING

pytestmark = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")

LIMITS = SandboxConfig(wall_seconds=5, cpu_seconds=5, memory_mib=128, disk_mib=8, max_files=256, processes=16, libraries=False)
LARGEST_PROCESSOR_SECONDS = 2 * (LIMITS.cpu_seconds + 1) + 4
"""What an abuse may cost in all: its programs' limit, those of one child, and the launcher."""
MISTAKES = ("SyntaxError", "NameError", "TypeError", "AttributeError", "ImportError")
"""How a program of the corpus ends that never reaches its attempt."""
PATIENCE_SECONDS = 120.0
"""How long harm may take to show where it must show."""
SHORT = LIMITS.model_copy(update={"wall_seconds": 1.0})
PATIENT = LIMITS.model_copy(update={"wall_seconds": 120.0})
"""For what must end by another limit, however little of the processor the machine gives it."""


@pytest.fixture(scope="module")
def canaries() -> Iterator[Canaries]:
    made = Canaries()
    os.environ[made.nonce.upper()] = made.secret
    yield made
    del os.environ[made.nonce.upper()]
    made.close()


def run(canaries: Canaries, config: SandboxConfig, source: str) -> SandboxResult:
    return Sandbox(config).run(python_program(PRELUDE + canaries.prelude() + source))


def harm_of(canaries: Canaries, result: SandboxResult) -> list[str]:
    """What the canaries, and the program itself, tell."""
    told = result.stdout_text + result.stderr_text
    found = canaries.harm()
    if canaries.secret in told:
        found.append("the secret was read")
    return found + [line for line in told.splitlines() if line.startswith("HARM")]


@pytest.mark.parametrize("name", REACHING)
def test_nothing_of_the_host_is_reached(canaries: Canaries, name: str) -> None:
    assert harm_of(canaries, run(canaries, LIMITS, REACHING[name].source)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ESCAPES)
def test_no_escape_succeeds(canaries: Canaries, name: str) -> None:
    result = run(canaries, LIMITS, ESCAPES[name].source)
    assert harm_of(canaries, result) == []
    assert not any(error in result.stderr_text for error in MISTAKES), result.stderr_text


@pytest.mark.slow
@pytest.mark.parametrize("name", ABUSES)
def test_no_abuse_takes_more_than_its_limits(canaries: Canaries, name: str) -> None:
    config, began = SHORT if "timed_out" in ABUSES[name].notes else PATIENT, processor_seconds()
    result = run(canaries, config, ABUSES[name].source)
    assert result.ending in ABUSES[name].notes
    assert processor_seconds() - began < LARGEST_PROCESSOR_SECONDS
    assert max(len(result.stdout), len(result.stderr)) <= SHORT.output_bytes
    assert harm_of(canaries, result) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REACHING)
def test_the_canaries_notice_harm_where_there_are_no_walls(name: str) -> None:
    if name in ("read it through the root of process 1", "own environment", "leave a child"):
        pytest.skip("not possible for every user, or prevented without isolation too")
    config = PATIENT.model_copy(update={"isolation": "none"})
    own = Canaries()
    try:
        result, deadline = run(own, config, REACHING[name].source), time.monotonic() + PATIENCE_SECONDS
        while not (harm := harm_of(own, result)) and time.monotonic() < deadline:
            time.sleep(0.05)  # a daemon that it left may not be what it is to become yet
        assert harm != []
    finally:
        own.close()
