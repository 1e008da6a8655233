"""A repository is read, edited and tested by tools, and the diff decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.sandbox.sandbox import isolation
from rl.envs.base import Environment, Resources, Step, ToolOutcome, find_environment
from rl.renderers.base import Action
from tests.eval.graders.small_repository import FILES, GOLD
from tests.rl.envs.test_environments import write_shop
from warehouse.records import Task

pytestmark = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")


@pytest.fixture
async def environment(tmp_path: Path) -> Environment:
    provenance = write_shop(tmp_path)
    made = find_environment("repository")(Resources(options={"folder": tmp_path}))
    first = await made.reset(Task("shop", "repository", "The total leaves out the first price.", (), provenance=provenance), 0)
    assert first.text.splitlines() == sorted(FILES)
    return made


async def call(environment: Environment, name: str, **arguments: Any) -> Step:
    """Call a tool, by plain text where it takes one argument alone."""
    text = next(iter(arguments.values())) if name in ("search_files", "run_tests") else json.dumps(arguments)
    return await environment.step(Action(name, text))


@pytest.mark.slow
async def test_a_repair_is_rewarded(environment: Environment) -> None:
    assert "sum(prices[1:])" in (await call(environment, "search_files", text="sum(")).observation
    assert "2\t    return sum(prices[1:])" in (await call(environment, "read_file", path="shop/prices.py")).observation
    edited = await call(environment, "edit_file", path="shop/prices.py", old="prices[1:]", new="prices")
    assert edited.tool_outcome is ToolOutcome.OK
    assert "1 passed" in (await call(environment, "run_tests", path="tests")).observation
    step = await environment.step(Action("answer", "The first price is counted now."))
    assert (step.done, step.reward) == (True, 1.0)
    assert step.info == {"patch": GOLD, "not_passed": []}


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("list_files", {"folder": "nowhere"}, ToolOutcome.MISS),
        ("read_file", {"path": "../shop/README.md"}, ToolOutcome.ERROR),
        ("edit_file", {"path": "shop/prices.py", "old": "prices", "new": "x"}, ToolOutcome.ERROR),
        ("write_file", {"path": "../outside", "content": "x"}, ToolOutcome.ERROR),
        ("write_file", {"path": "/tmp/outside", "content": "x"}, ToolOutcome.ERROR),
        ("write_file", {"path": "\N{LATIN SMALL LETTER SHARP S}" * 128, "content": "x"}, ToolOutcome.ERROR),
        ("run_tests", {"path": "nowhere"}, ToolOutcome.ERROR),
        ("write_file", {"path": "a/new/file.py", "content": "x"}, ToolOutcome.OK),
    ],
)
@pytest.mark.slow
async def test_wrong_calls_are_answered_with_an_error(
    environment: Environment, name: str, arguments: dict[str, Any], outcome: ToolOutcome
) -> None:
    assert (await call(environment, name, **arguments)).tool_outcome is outcome


async def test_the_tests_of_the_task_are_not_shown(environment: Environment) -> None:
    assert (await call(environment, "search_files", text="test_all_are_counted")).tool_outcome is ToolOutcome.MISS
