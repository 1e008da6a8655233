"""What a process started dies with it, even when it is killed without warning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import subprocess, sys
from flows.guardian import start_guardian
start_guardian()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_child_in_its_own_session_ends_after_sigkill_of_its_parent_and_a_stranger_lives() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
