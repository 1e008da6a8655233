"""Calls of functions: what the policy is told, what is a fault, what is tried again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rl.tools import Tool, ToolError, ToolFault, tool
from rl.tools.calls import CallOutcome, call_tool, check_health, dead_tools
from rl.tools.config import CallRules
from rl.tools.deadline import deadline, remaining
from rl.tools.file import by_name
from rl.tools.python_tools import FunctionTool
from tests.rl.tools.examples import HOSTILE, lie, lie_slowly, look_up, over, repeat

QUICK = CallRules(timeout_seconds=0.2)


async def call(called: Tool, arguments: Any) -> CallOutcome:
    return await call_tool(called, await called.open("t", 0), arguments)


async def text_of(called: Tool, arguments: Any) -> str:
    shown = (await call(called, arguments)).response
    assert shown is not None
    return shown.text


@pytest.mark.parametrize(
    "arguments",
    ['{"times": 2}', '{"text": "a", "times": "many"}', '{"text": "a", "sound": 1}', '{"text": "\\ud800"}', '{"text": "a", "times": 1e999}'],
)
async def test_wrong_arguments_are_the_callers_error(arguments: str) -> None:
    refusal = (await call(repeat, arguments)).refusal
    assert isinstance(refusal, ToolError)
    assert str(refusal).startswith("wrong arguments for repeat: ")


@pytest.mark.parametrize("function", [lie, lie_slowly])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("wrong type", "it returned a int, which is not what it says it returns"),
        ("endless", "it returned a count, which is not"),
        ("raise", "'{name}' failed: ValueError: broken$"),
        ("raise much", "ValueError: x{{400}}"),
        ("leave", "it tried to end the process: SystemExit"),
        ("interrupt", "it tried to end the process: KeyboardInterrupt"),
    ],
)
async def test_a_tool_that_breaks_its_word_is_at_fault_and_named(function: Any, how: str, reason: str) -> None:
    liar = FunctionTool(function, rules=CallRules(max_characters=1000))
    with pytest.raises(ToolFault, match=reason.format(name=liar.name)) as fault:
        await call(liar, how)
    assert f"the tool {liar.name!r} failed" in str(fault.value)
    assert len(str(fault.value)) < 1000
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(("function", "how"), [(lie, "hang"), (lie_slowly, "hang"), (lie_slowly, "hang and hold on")])
async def test_a_tool_that_hangs_is_left_behind(function: Any, how: str) -> None:
    with pytest.raises(ToolFault, match=r"took longer than 0\.2 seconds"):  # it would hang until the next line
        await call(FunctionTool(function, rules=QUICK), how)
    over.set()


async def test_threads_that_hang_hold_up_nobody() -> None:
    liar = FunctionTool(lie, rules=CallRules(timeout_seconds=500))
    hung = [asyncio.ensure_future(call(liar, "hang")) for _ in range(100)]
    await asyncio.sleep(0.05)
    assert await text_of(repeat, "a") == "aa"
    assert not any(task.done() for task in hung)
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)


@pytest.mark.parametrize("function", [lie, lie_slowly])
async def test_what_a_tool_says_is_bounded_and_clean(function: Any) -> None:
    liar = FunctionTool(function, rules=CallRules(max_characters=1000))
    assert len(await text_of(liar, "100 MB")) == 1000
    assert await text_of(liar, "surrogates") == "half ? a pair"
    assert await text_of(liar, "hostile") == HOSTILE
    refused = await call(liar, "refuse at length")
    assert isinstance(refused.refusal, ToolError)
    assert len(str(refused.refusal)) == 1000
    assert str((await call(liar, "refuse")).refusal) == "4: not so"


async def test_faults_are_tried_again_where_the_tool_allows_it_and_counted() -> None:
    calls: list[str] = []

    @tool(retries=3, backoff_seconds=0.01)
    def flaky(text: str) -> str:
        calls.append(text)
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return text

    done = await call(flaky, "a")
    assert (done.retries, len(calls)) == (2, 3)
    assert done.latency_seconds >= 0.03


async def test_a_deadline_is_inherited_and_bounds_all_attempts_of_a_call() -> None:
    seen: list[float] = []

    def slow(query: str) -> str:
        """In a thread, like every plain function."""
        seen.append(remaining() or 0.0)
        time.sleep(0.05)
        raise OSError("down")

    patient = FunctionTool(slow, rules=CallRules(timeout_seconds=30.0, retries=100, backoff_seconds=0.01))
    began = time.monotonic()
    with deadline(0.6), pytest.raises(ToolFault, match=r"longer than 0\.6 seconds"):
        await call(patient, "x")
    assert time.monotonic() - began < 2 and 1 < len(seen) < 13
    assert sorted(seen, reverse=True) == seen and seen[0] <= 0.6 and remaining() is None


async def test_the_gate_names_the_tools_that_are_dead() -> None:
    @tool(probe={"text": "a"})
    def broken(text: str) -> str:
        raise ConnectionError("refused")

    @tool(probe={"text": 5, "more": 1})
    def strict(text: str) -> str:
        return text

    await check_health(look_up)
    assert await dead_tools(by_name([look_up, broken, strict])) == (
        "the tool 'broken' is dead: ConnectionError: refused",
        'the tool \'strict\' is dead: it refused its probe {"text": 5, "more": 1}: '
        "wrong arguments for strict: text: Input should be a valid string",
    )
