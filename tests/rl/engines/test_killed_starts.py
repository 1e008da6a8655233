"""Engines whose processes are killed while they start: a fault that names the signal and the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from flows.cli import exit_status
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from rl.worker_death import WorkerDied
from tests.rl.conftest import DOCUMENTS
from tests.rl.engines.probing import engine_processes

pytestmark = pytest.mark.engine

LIMITS = {"max_action_tokens": 8, "max_observation_tokens": 32, "max_context_tokens": 240}


@contextmanager
def killed_as_soon_as_there(title: str) -> Iterator[None]:
    """Kills each new process of that title; those of an earlier test, which may still be ending, are spared."""
    over, earlier = threading.Event(), engine_processes(title)

    def kill() -> None:
        while not over.wait(0.05):
            for process in (each for each in engine_processes(title) if each not in earlier):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


@pytest.mark.long
@pytest.mark.parametrize(
    ("title", "told"),
    [
        ("ray::VllmEngine", "the engine engine-0 died, without a trace, as if by SIGKILL"),
        ("EngineCore", ("the vLLM process of an engine died, by SIGKILL", "the vLLM process of an engine died, without a trace")),
    ],
    ids=["its actor", "its own process"],  # no titles: the test's name is the title of what runs it, and of all that it forks
)
def test_an_engine_that_is_killed_while_it_starts_is_a_fault(tiny_policy: Path, title: str, told: str | tuple[str, ...]) -> None:
    config = RolloutConfig.model_validate({"limits": LIMITS, "engine": {"kv_cache_gib": 0.1, "cpus": 0.25}})
    with killed_as_soon_as_there(title), pytest.raises(WorkerDied) as died:
        Rollouts.start(config, tiny_policy, DOCUMENTS).close()
    assert str(died.value).startswith(told)
    assert exit_status(died.value) == 1
    assert not engine_processes("ray::VllmEngine") and not engine_processes("EngineCore")
