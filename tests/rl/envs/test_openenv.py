"""The client of OpenEnv's servers: against a small server that follows the published protocol, and against the package's own.

`OPENENV_PYTHON` names an interpreter that has `openenv-core`; without it, its tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from rl.envs import openenv
from rl.envs.base import EnvironmentFault, FaultKind, Resources, ToolOutcome
from rl.envs.openenv import OpenEnvEnvironment, create
from rl.renderers.base import Action
from tests.ports import answers, free_port
from tests.rl.http_server import served
from warehouse.records import Task

pytestmark = pytest.mark.slow
PYTHON = os.environ.get("OPENENV_PYTHON", sys.executable)
TASK = Task("t", "openenv", "Count to eight.", (), provenance={"reset": {"start": 5}})
COUNT = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "by": {"type": "integer", "minimum": 0}},
    "required": ["by"],
    "additionalProperties": False,
}
SCRIPT = """
import sys
from typing import Any
import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

class Count(Action):
    by: int = Field(ge=0)

class Counted(Observation):
    text: str = ""

class Counter(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, start=0, **rest: Any):
        self.count, self.goal = start, start + 3
        return Counted(text=f"The count is {self.count}.")
    def step(self, action, timeout_s=None, **rest: Any):
        if action.by == 99:
            raise RuntimeError("out of paper")
        self.count += action.by
        return Counted(text=f"The count is {self.count}.", reward=float(self.count == self.goal), done=self.count == self.goal)
    @property
    def state(self):
        return State(step_count=0)

class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        server = FastMCP("counter")
        @server.tool
        def add(by: int) -> str:
            "Add to the count."
            if by == 99:
                raise ValueError("too much")
            self.count += by
            return f"The count is {self.count}."
        super().__init__(server)
    def reset(self, seed=None, episode_id=None, start=0, **rest: Any):
        self.count = start
        return Observation(metadata={})
    def _step_impl(self, action, timeout_s=None, **rest: Any):
        return Observation(done=False, reward=0.0)
    @property
    def state(self):
        return State(step_count=0)

mcp = sys.argv[2] == "tools"
app = create_fastapi_app(*((Tools, CallToolAction, CallToolObservation) if mcp else (Counter, Count, Counted)), max_concurrent_envs=2)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


class Imitation:
    """The counter of `SCRIPT` in the form of OpenEnv's server, with at most `most` sessions."""

    def __init__(self, most: int = 2) -> None:
        self.most, self.sessions, self.resets = most, 0, list[Any]()
        self.application = FastAPI()
        self.application.add_api_route("/schema", lambda: {"action": COUNT, "observation": {}, "state": {}})
        self.application.add_api_websocket_route("/ws", self.session)

    async def session(self, websocket: WebSocket) -> None:
        await websocket.accept()
        if self.sessions == self.most:
            await websocket.send_json({"type": "error", "data": {"message": "2 of 2 sessions", "code": "CAPACITY_REACHED"}})
            await websocket.close()
            return
        self.sessions += 1
        count = goal = 0
        try:
            while True:
                message = await websocket.receive_json()
                told, done, by = message["data"], False, message["data"].get("by")
                if message["type"] == "reset":
                    self.resets.append(told)
                    count, goal = told["start"], told["start"] + 3
                elif by == 99:
                    await websocket.send_json({"type": "error", "data": {"message": "out of paper", "code": "EXECUTION_ERROR"}})
                    continue
                else:
                    count += by
                    done = count == goal
                if by == 98:
                    await websocket.send_text("[" * 100_000)
                    continue
                paid: Any = "much" if by == 97 else float(done)
                seen = {"observation": {"text": f"The count is {count}."}, "reward": paid, "done": done}
                await websocket.send_json({"type": "observation", "data": seen})
        except WebSocketDisconnect:
            self.sessions -= 1


@contextmanager
def server(kind: str) -> Iterator[str]:
    """The address of a counter: an imitation, or the package's own."""
    if kind == "imitation":
        with served(Imitation().application) as url:
            yield url
        return
    if subprocess.run([PYTHON, "-c", "import openenv.core, fastmcp"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no openenv-core: set OPENENV_PYTHON")
    port = free_port()
    process = subprocess.Popen([PYTHON, "-c", SCRIPT, str(port), kind])
    try:
        deadline = time.monotonic() + 120
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def opened(url: str) -> OpenEnvEnvironment:
    return create(Resources(options={"url": url}))


@pytest.mark.parametrize("kind", ["imitation", "own"])
async def test_an_episode_has_the_servers_rewards_and_ends_when_it_says_so(kind: str) -> None:
    with server(kind) as url:
        playing = opened(url)
        await playing.probe()
        begun = await playing.reset(TASK, 7)
        wrong = await playing.step(Action("act", '{"by": -1}'))
        steps = [await playing.step(Action("act", '{"by": 1}')) for _ in range(3)]
        await playing.close()
    assert begun.text == "The count is 5." and [tool["function"]["name"] for tool in begun.tools] == ["act"]
    assert "metadata" not in begun.tools[0]["function"]["parameters"]["properties"]
    assert wrong.tool_outcome is ToolOutcome.ERROR and "by" in wrong.observation and wrong.reward is None
    assert [step.observation for step in steps] == ["The count is 6.", "The count is 7.", "The count is 8."]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False), (0.0, False), (1.0, True)]


async def test_tools_of_a_server_have_their_own_names() -> None:
    with server("tools") as url:
        playing = opened(url)
        begun = await playing.reset(TASK, 7)
        added = await playing.step(Action("add", '{"by": 2}'))
        refused = await playing.step(Action("add", '{"by": 99}'))
        await playing.close()
    assert [(tool["function"]["name"], tool["function"]["description"]) for tool in begun.tools] == [("add", "Add to the count.")]
    assert (added.observation, added.tool_outcome, added.done) == ("The count is 7.", ToolOutcome.OK, False)
    assert refused.tool_outcome is ToolOutcome.ERROR and "too much" in refused.observation


@pytest.mark.parametrize("kind", ["imitation", "own"])
async def test_a_third_session_waits_until_one_of_two_has_ended(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(kind) as url:
        first, second, third = opened(url), opened(url), opened(url)
        await asyncio.gather(first.reset(TASK, 0), second.reset(TASK, 0))
        waiting = asyncio.ensure_future(third.reset(TASK, 0))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await first.close()
        assert (await waiting).text == "The count is 5."
        monkeypatch.setattr(openenv, "SESSION_SECONDS", 0.5)
        with pytest.raises(EnvironmentFault, match="has no free session") as fault:
            await first.reset(TASK, 0)
        assert fault.value.kind is FaultKind.UNREACHABLE
        await asyncio.gather(second.close(), third.close())


@pytest.mark.parametrize("kind", ["imitation", "own"])
async def test_sessions_of_a_killed_process_end(kind: str) -> None:
    script = (
        "import asyncio, sys, time\n"
        "from tests.rl.envs.test_openenv import TASK, opened\n"
        "async def hold():\n"
        "    held = [opened(sys.argv[1]) for _ in range(2)]\n"
        "    for each in held:\n"
        "        await each.reset(TASK, 0)\n"
        "    print('held', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(hold())\n"
    )
    with server(kind) as url:
        holder = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        holder.kill()
        holder.communicate()
        playing = opened(url)
        assert (await playing.reset(TASK, 0)).text == "The count is 5."
        await playing.close()


@pytest.mark.parametrize("kind", ["imitation", "own"])
async def test_a_server_that_fails_or_is_gone_is_a_fault(kind: str) -> None:
    with server(kind) as url:
        playing = opened(url)
        await playing.reset(TASK, 0)
        with pytest.raises(EnvironmentFault, match="out of paper"):
            await playing.step(Action("act", '{"by": 99}'))
        await playing.close()
    with pytest.raises(EnvironmentFault) as fault:
        await opened(url).reset(TASK, 0)
    assert fault.value.kind is FaultKind.UNREACHABLE


@pytest.mark.parametrize(("by", "reason"), [(97, "paid 'much', which is no number"), (98, "in an unknown form")])
async def test_what_a_server_may_not_say_is_a_fault(by: int, reason: str) -> None:
    with server("imitation") as url:
        playing = opened(url)
        await playing.reset(TASK, 0)
        with pytest.raises(EnvironmentFault, match=reason):
            await playing.step(Action("act", f'{{"by": {by}}}'))
        await playing.close()
