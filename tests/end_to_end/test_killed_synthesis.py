"""A synthesis that is killed fifty times at random moments makes what an undisturbed one makes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from flows.config import load_config
from flows.home import Home
from tests.end_to_end.synthesis_worker import worker
from tests.end_to_end.test_synthesis_by_models import content
from warehouse import Lake

pytestmark = pytest.mark.end_to_end

SMALL = Path(__file__).parent / "small.toml"
KILLS = 50
SETTINGS = (
    "corpus.train.entities=200",
    "corpus.held_out.entities=150",
    "synth.batch=10",
    "synth.documents=20",
    "synth.fas.plan_slices=10",
    'synth.fas.reasoning={"1":30,"2":20}',
    'synth.webshaper.counts={"1":20,"2":20}',
    'synth.demonstration_questions.counts={"1":10,"2":10}',
    'evaluation.suites.held_out.counts={"1":10,"2":10}',
)


def claim(root: Path) -> Path:
    Home(root).claim(load_config(str(SMALL), SETTINGS))
    return root


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kills_change_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    with worker() as at_work:
        assert at_work.run(claim(tmp_path / "undisturbed")) == 0
        started = time.monotonic()
        assert at_work.run(claim(tmp_path / "timed")) == 0  # the first one also warmed files and libraries up
        whole = time.monotonic() - started
        expected = content(tmp_path / "undisturbed")
        assert expected["state"] == "completed" and len(expected["counts"]) > 20
        killed, homes, batches = 0, 0, set()
        while killed < KILLS:
            home, status = claim(tmp_path / f"killed-{homes}"), -signal.SIGKILL
            homes += 1
            while killed < KILLS and status == -signal.SIGKILL:
                status = at_work.run(home, kill_after=chance.uniform(0.0, whole))
                killed += status == -signal.SIGKILL
                batches.add(_batches_done(home))
            assert status in (0, -signal.SIGKILL)
            assert at_work.run(home) == 0
            assert content(home) == expected
    assert len(batches) > KILLS / 5, "the kills must hit many different moments"


def _batches_done(home: Path) -> int:
    if not (home / "lake" / "catalog.sqlite").exists():
        return 0
    with Lake(home) as lake:
        return len(lake.metrics())
