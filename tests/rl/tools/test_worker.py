"""Heavy tools in Ray workers of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl.ray_runtime import RayConfig, RayRuntime
from rl.tools import Tool, ToolError, ToolFault
from rl.tools.config import ToolConfig
from rl.tools.file import load_tools
from rl.tools.python_tools import ToolSource
from rl.tools.worker import WorkerTool
from rl.worker_death import WorkerDied
from tests.rl.tools.calling import call, text_of
from warehouse.errors import RequestError

pytestmark = pytest.mark.engine
FOLDER = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[RayRuntime]:
    started = RayRuntime(RayConfig(object_store_gib=0.1), cpus=3)
    yield started
    started.close()


def worker_tool(name: str, config: dict[str, Any], **worker: Any) -> WorkerTool:
    source = ToolSource(name, ToolConfig.model_validate({"worker": {"cpus": 0.1, **worker}, **config}), FOLDER)
    assert source.config.worker is not None
    return WorkerTool(source, source.config.worker)


def model(name: str, options: dict[str, Any] | None = None, rules: dict[str, Any] | None = None, **worker: Any) -> WorkerTool:
    config = {"class": "examples.py:Model", "options": {"name": name} | (options or {}), **(rules or {})}
    return worker_tool(name, config, **worker)


async def test_one_worker_is_shared_with_bounded_concurrency() -> None:
    first, second = model("shared", concurrency=2), model("shared", concurrency=2)
    answers = await asyncio.gather(*(text_of(tool, "ask") for tool in (first, second) * 4))
    assert len({answer.rpartition(', "most"')[0] for answer in answers}) == 1
    assert {answer.rpartition('"most": ')[2] for answer in answers} <= {"1}", "2}"}
    assert first.schema["function"]["description"] == "Ask the model."


async def test_refusals_and_faults_come_back_as_such() -> None:
    tool = model("plain")
    assert str((await call(tool, "refuse")).refusal) == "4: ask differently"
    assert isinstance((await call(tool, '{"demand": "x"}')).refusal, ToolError)
    with pytest.raises(ToolFault, match="the tool 'plain' failed: ValueError: no such request"):
        await call(tool, "raise")


async def test_a_worker_that_dies_is_at_fault_and_started_again() -> None:
    tool = model("mortal")
    before = await text_of(tool, "ask")
    with pytest.raises(ToolFault, match="the tool 'mortal' failed: its worker died"):
        await call(tool, "die")
    assert await _until_it_answers(tool) != before


def test_an_impossible_worker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'greedy' needs 64 GPUs"):
        model("greedy", gpus=64)
    with pytest.raises(RequestError, match=r"'missing' .*no such model"):
        model("missing")
    with pytest.raises(RequestError, match="method 'create'"):
        worker_tool("notes", {"class": "examples.py:Notebook"})
    path = tmp_path / "tools.toml"
    path.write_text(f'[tools.ask]\nclass = "{FOLDER}/examples.py:Model"\noptions = {{ names = 1 }}\nworker = {{ cpus = 0.1 }}')
    with pytest.raises(RequestError, match="'ask' does not take its options"):
        load_tools(path)


def test_a_worker_that_dies_while_it_starts_is_a_fault() -> None:
    with pytest.raises(WorkerDied, match="the worker of the tool 'deadly' died, without a trace, as if by SIGKILL"):
        model("deadly")


async def _until_it_answers(tool: Tool) -> str:
    """The answer of a worker that is being started again; calls that come too early are faults."""
    deadline = time.monotonic() + 120.0
    while True:
        try:
            return await text_of(tool, "ask")
        except ToolFault:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
