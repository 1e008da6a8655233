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
nameless = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={}).pid"
made = f"import subprocess, sys, tempfile, time; print('nameless', {nameless}, tempfile.mkdtemp(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", made], start_new_session=True)
print("child", child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_child_in_its_own_session_ends_after_sigkill_of_its_parent_and_its_files_go_and_a_stranger_lives() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = sorted(parent.stdout.readline().split() for _ in range(2))
        child, nameless, folder = int(said[0][1]), int(said[1][1]), Path(said[1][2])
        assert folder.parent.name.startswith(f"flywheel-files-{parent.pid}-")
        assert folder.is_dir()
        assert token_of(parent.pid) in (Path(f"/proc/{child}/environ").read_text())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while (Path(f"/proc/{child}").exists() or Path(f"/proc/{nameless}").exists() or folder.parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert not Path(f"/proc/{nameless}").exists(), "one that carries no token, as Ray's agents do once they write their title"
    assert not folder.parent.exists()
    assert stranger.poll() is None
    assert token_of(stranger.pid) is None
    stranger.kill()
    stranger.wait()
