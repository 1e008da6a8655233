"""What a process started dies with it, even when it is killed without warning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.runtime import carriers, token_of

CODE = """
import subprocess, sys, tempfile
from flows.runtime import start_reaper
start_reaper()
made = "import tempfile, time; print(tempfile.mkdtemp(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", made], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""
WITH_RAY = """
import sys
from flows.runtime import start_reaper
start_reaper()
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_sigkill_of_a_parent_ends_its_children_and_removes_their_files() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        folder = next(Path(line) for line in said if not line.isdigit())
        child = int((said - {str(folder)}).pop())
        assert folder.parent.name.startswith(f"flywheel-files-{parent.pid}-")
        assert folder.is_dir()
        assert token_of(parent.pid) in (Path(f"/proc/{child}/environ").read_text())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while (Path(f"/proc/{child}").exists() or folder.parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert not folder.parent.exists()
    assert stranger.poll() is None
    assert token_of(stranger.pid) is None
    stranger.kill()
    stranger.wait()


@pytest.mark.long
@pytest.mark.slow
def test_agents_of_ray_end_with_their_run() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert any("up" in line for line in parent.stdout), "it ended before Ray was up"
        deadline = time.monotonic() + 240
        while len(agents := titled("ray::", parent.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        token = token_of(parent.pid)
        assert token is not None
        assert len(agents) >= 2
        written_over = [agent.pid for agent in agents if b"\0\0" in Path(f"/proc/{agent.pid}/environ").read_bytes()]
        assert written_over == [], "the token may stand anywhere in the environment"
        assert {agent.pid for agent in agents} <= set(carriers(token))
        (raylet,) = {agent.ppid() for agent in agents}
        os.kill(raylet, signal.SIGKILL)
        os.kill(parent.pid, signal.SIGKILL)
    assert psutil.wait_procs(agents, timeout=120)[1] == []


def titled(title: str, parent: int) -> list[psutil.Process]:
    """The processes below `parent` whose title begins so."""
    return [child for child in psutil.Process(parent).children(recursive=True) if "".join(child.cmdline()[:1]).startswith(title)]
