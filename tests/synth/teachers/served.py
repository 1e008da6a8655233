"""A real OpenAI-compatible server over a policy of ours: `vllm serve` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl.engines.config import EngineConfig
from rl.engines.vllm_engine import environment_variables
from tests.ports import free_port

CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
START_SECONDS = 300


@contextmanager
def serve(policy: Path, folder: Path) -> Iterator[str]:
    """The address of a server of the policy under the name `tiny`; `folder` takes its log."""
    (folder / "chat.jinja").write_text(CHAT_TEMPLATE)
    port = free_port()
    # What `vllm serve` runs; that command itself asks for the metadata of a package `vllm`, and the CPU build is another package.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", policy, "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"]
    command += ["--chat-template", folder / "chat.jinja"]
    environment = {**os.environ, **environment_variables(EngineConfig()), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(part) for part in command], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, folder / "log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")
