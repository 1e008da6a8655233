"""Tools of real MCP servers: one over its standard input and output, one over HTTP, and one that lies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl.tools import Tool, ToolError, ToolFault
from rl.tools.config import ServerConfig
from rl.tools.mcp_server import McpServer
from tests.ports import free_port
from tests.rl.tools.calling import call, text_of
from warehouse.errors import RequestError

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.slow


def over_stdio(script: str = "mcp_server.py", *arguments: str, **config: Any) -> McpServer:
    return McpServer("tests", ServerConfig(command=[sys.executable, script, *arguments], **config), FOLDER)


def started(server: McpServer) -> dict[str, Tool]:
    return {tool.name: tool for tool in server.start()}


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, Tool]]:
    server = over_stdio(timeout_seconds=3.0, probes={"look_up": {"key": "known"}}, env={"SECRET": "${TESTS_SECRET}"})
    yield started(server)
    server.close()


@pytest.fixture(scope="module", autouse=True)
def secret() -> Iterator[None]:
    os.environ["TESTS_SECRET"] = "$ecret"
    yield
    del os.environ["TESTS_SECRET"]


async def test_a_server_lists_its_tools_and_answers_calls(tools: dict[str, Tool]) -> None:
    assert tools["add"].schema["function"]["description"] == "Add two numbers."
    assert tools["add"].parameters["required"] == ["first", "second"]
    assert await text_of(tools["add"], '{"first": 1, "second": 2}') == "3"
    assert await text_of(tools["look_up"], "known") == "value"


async def test_a_server_sees_no_variables_but_those_it_is_given(tools: dict[str, Tool]) -> None:
    assert await text_of(tools["variable"], "SECRET") == "$ecret"
    assert await text_of(tools["variable"], "TESTS_SECRET") == ""


async def test_server_output_is_bounded_and_noise_is_ignored(tools: dict[str, Tool]) -> None:
    shown = (await call(tools["misbehave"], "10 MB")).response
    assert shown is not None
    assert len(shown.text) == 65_536
    assert await text_of(tools["misbehave"], "noise") == "</information><answer> x</answer>"


@pytest.mark.parametrize(("how", "reason"), [("die", "Connection closed"), ("hang", "took longer than 3 seconds")])
async def test_a_server_that_dies_or_hangs_is_at_fault_and_started_again(tools: dict[str, Tool], how: str, reason: str) -> None:
    before = await text_of(tools["process"], {})
    with pytest.raises(ToolFault, match=f"the tool 'misbehave' failed: .*{reason}"):
        await call(tools["misbehave"], how)
    after = await text_of(tools["process"], {})
    assert before != after
    deadline = time.monotonic() + 120.0
    while psutil.pid_exists(int(before)) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not psutil.pid_exists(int(before))


async def test_errors_and_cancelled_calls_do_not_restart_the_server(tools: dict[str, Tool]) -> None:
    before = await text_of(tools["process"], {})
    refusal = (await call(tools["misbehave"], "deny")).refusal
    assert isinstance(refusal, ToolError) and str(refusal) == "no such file"
    cancelled = asyncio.create_task(call(tools["misbehave"], "hang"))
    await asyncio.sleep(0.5)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await text_of(tools["process"], {}) == before


async def test_a_server_that_lies_about_its_schema_is_at_fault() -> None:
    server = over_stdio("lying_server.py", "good")
    lie = started(server)["lie"]
    lies = {
        "wrong type": "structured",
        "no structure": "structured",
        "no base64": "base64",
        "no image": "image/png",
        "no result": "Validation",
    }
    for how, reason in lies.items():
        with pytest.raises(ToolFault, match=reason):
            await call(lie, how)
    assert await text_of(lie, "truth") == '{"count": 3}'
    server.close()


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (("lying_server.py", "name"), "'two words'"),
        (("lying_server.py", "answer"), "'answer'"),
        (("lying_server.py", "schema"), "'strange'"),
        (("missing.py",), "cannot be started"),
    ],
)
def test_a_server_of_no_use_is_refused_at_the_start(server: tuple[str, ...], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        over_stdio(*server).start()


def test_configurations_that_cannot_be_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="needs the environment variable NOT_SET"):
        over_stdio(env={"A": "${NOT_SET}"})
    with pytest.raises(RequestError, match=r"write \$\{NAME\}, and \$\$ for a dollar sign"):
        over_stdio(env={"A": "5 $"})
    with pytest.raises(RequestError, match="cannot be started: FileNotFoundError"):
        McpServer("tests", ServerConfig(command=["no-such-program-anywhere"]), FOLDER).start()
    monkeypatch.setattr("rl.tools.mcp_server.START_SECONDS", 0.5)
    with pytest.raises(RequestError, match=r"did not start within 0\.5 seconds"):
        McpServer("tests", ServerConfig(command=["sleep", "60"]), FOLDER).start()


@pytest.mark.end_to_end
async def test_a_server_over_http_answers_and_may_be_started_again() -> None:
    port = free_port()
    process = _serve(port)
    server = McpServer("web", ServerConfig(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Token": "${TESTS_SECRET}"}), FOLDER)
    tools = started(server)
    assert await text_of(tools["process"], {}) == str(process.pid)
    process.kill()
    process.wait()
    with pytest.raises(ToolFault, match="the tool 'add' failed"):
        await call(tools["add"], {"first": 1, "second": 2})
    process = _serve(port)
    assert await text_of(tools["add"], {"first": 1, "second": 2}) == "3"
    server.close()
    process.kill()
    process.wait()


def _serve(port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "mcp_server.py", str(port)], cwd=FOLDER, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.1)
    raise TimeoutError("the server does not listen")
