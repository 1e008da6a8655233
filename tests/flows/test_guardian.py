"""What a process started dies with it, even when it is killed without warning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.guardian import token_of

CODE = """
import subprocess, sys, tempfile
from flows.guardian import start_guardian
start_guardian()
made = "import tempfile, time; print(tempfile.mkdtemp(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", made], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_child_in_its_own_session_ends_after_sigkill_of_its_parent_and_its_files_go_and_a_stranger_lives() -> None:
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
    deadline = time.monotonic() + 20
    while (Path(f"/proc/{child}").exists() or folder.parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert not folder.parent.exists()
    assert stranger.poll() is None
    assert token_of(stranger.pid) is None
    stranger.kill()
    stranger.wait()
