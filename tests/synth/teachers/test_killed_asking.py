"""A process that is killed while it asks: what it was told is not asked again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.synth.teachers import asking_process
from tests.synth.teachers.asking_process import CONCURRENCY, QUESTIONS
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Completion, Lake

ROOT = Path(__file__).parents[3]


@pytest.mark.engine
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_killed_process_pays_only_for_what_was_in_flight_again(tmp_path: Path, kills: int) -> None:
    rng = random.Random(0)
    with MisbehavingServer(slow_seconds=0.1) as server:
        command = [sys.executable, "-m", asking_process.__name__, str(tmp_path), server.url]
        for _ in range(kills):
            process = subprocess.Popen(command, cwd=ROOT)
            before = len(server.times)
            while len(server.times) < before + rng.randint(2, QUESTIONS // 4) and process.poll() is None:
                time.sleep(0.005)
            process.kill()
            process.wait()
        assert QUESTIONS > len(server.times) > kills
        assert subprocess.run(command, cwd=ROOT).returncode == 0
        asked = len(server.times)
    with Lake(tmp_path) as lake:
        stored = {completion.request["messages"][-1]["content"]: completion.text for completion in lake.read(Completion)}
    assert stored == {f"question {number}": f"echo question {number}" for number in range(QUESTIONS)}
    assert QUESTIONS <= asked <= QUESTIONS + kills * 2 * CONCURRENCY
