"""The code interpreter: what a program prints is seen, what it does wrong too, and nothing else happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eval.sandbox.sandbox import isolation
from rl.envs.base import Environment, EnvironmentFault, Resources, Step, ToolOutcome, find_environment
from rl.renderers.base import Action
from warehouse.records import Task

pytestmark = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")
TASK = Task("sum", "python", "What is 17 times 23?", ("391",))


def make(**options: Any) -> Environment:
    return find_environment("python")(Resources(options=options))


def run(program: str, **options: Any) -> Step:
    return asyncio.run(make(**options).step(Action("code", program)))


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("print(17 * 23)", "391"),
        ("17 * 23", "391"),
        ("```python\nprint(17 * 23)\n```", "391"),
        ("def f(n):\n    return n\n\nfor n in range(3):\n    print(f(n))", "0\n1\n2"),
        ("", "The program printed nothing."),
        ("print('ü 例')", "ü 例"),
        ("import sys; print(1); sys.exit()", "1"),
    ],
)
@pytest.mark.slow
def test_what_a_program_prints_is_observed(program: str, printed: str) -> None:
    step = run(program)
    assert (step.observation, step.tool_outcome, step.done) == (printed, ToolOutcome.OK, False)


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("print('before')\nundefined", "before"),
        ("import os; os.abort()", "signal 6"),
        ("x = bytearray(10 ** 12)", "MemoryError"),
        ("while True: print('x' * 1000)", "more than"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "PermissionError"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("\x00", "Error"),
    ],
)
def test_what_a_program_does_wrong_is_observed(program: str, shown: str) -> None:
    step = run(program)
    assert step.tool_outcome is ToolOutcome.ERROR
    assert shown in step.observation
    assert "<string>" not in step.observation


def test_a_program_that_takes_too_long_is_an_error() -> None:
    step = run("while True: pass", sandbox={"wall_seconds": 0.5})
    assert step.tool_outcome is ToolOutcome.ERROR
    assert "0.5 seconds" in step.observation


async def test_each_call_is_a_fresh_process() -> None:
    environment = make()
    await environment.reset(TASK, 0)
    assert (await environment.step(Action("code", "x = 1; open('kept', 'w').write('1')"))).tool_outcome is ToolOutcome.OK
    assert "NameError" in (await environment.step(Action("code", "print(x)"))).observation
    assert "FileNotFoundError" in (await environment.step(Action("code", "open('kept')"))).observation
    assert await environment.step(Action("answer", "391")) == Step(done=True)
    await environment.close()


async def test_a_fault_of_the_sandbox_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = make()
    monkeypatch.setattr("eval.sandbox.sandbox._LAUNCHER", ("/bin/false",))
    with pytest.raises(EnvironmentFault, match="without a reply"):
        await environment.step(Action("code", "1"))


async def test_a_cancelled_program_is_killed() -> None:
    environment = make(sandbox={"wall_seconds": 5_000})  # beyond the test's own limit: it ends because it was killed
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(environment.step(Action("code", "import time; time.sleep(3_600)")), 0.5)
