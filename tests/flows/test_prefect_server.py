"""A flow outlives its temporary server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, signal, sys, time
from pathlib import Path
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.server.api.server import SubprocessASGIServer
from flows.prefect_runtime import quiet_prefect
from flows.prefect_runtime import wait_until_up

@flow
def inner(number):
    return number

@flow
def outer():
    known = inner(1)
    process = SubprocessASGIServer().server_process
    process.kill()
    process.wait()
    wait_until_up()
    return known + inner(2)

with quiet_prefect(Path(sys.argv[1])):
    began = time.monotonic()
    assert outer() == 3
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
print(sorted(run.state_name for run in runs), time.monotonic() - began)
"""


@pytest.mark.long
@pytest.mark.end_to_end
def test_a_flow_whose_server_is_killed_goes_on_with_another_over_the_same_database(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=550, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("['Completed', 'Completed', 'Completed']"), "the new server knows the runs of the old one"
