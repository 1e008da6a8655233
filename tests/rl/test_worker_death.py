"""What is told of a process that died while it started, from the errors that Ray and vLLM have for it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError, RuntimeEnvSetupError

from flows.cli import exit_status
from flows.pipeline import is_fault
from rl.worker_death import WorkerDied, own_process_died, worker_died

WHAT = "the worker of the environment 'search'"
GONE = RayActorError("00", "The actor died unexpectedly.\n\tpid: 4711\n\tip: 127.0.0.1\nThe process is killed by SIGKILL by OOM killer")
DEAD = WorkerDied(WHAT, "by SIGKILL", "first\nlast words\n")


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (GONE, "without a word, as by SIGKILL"),
        (OutOfMemoryError("Task was killed due to the node running low on memory"), "ended by Ray because the machine was short of memory"),
        (RayTaskError("check", "trace", DEAD), "by SIGKILL"),
    ],
)
def test_a_death_is_found_in_what_ray_says(error: Exception, how: str) -> None:
    died = worker_died(WHAT, error)
    assert died is not None and died.what == WHAT and died.how.startswith(how)


@pytest.mark.parametrize(
    "error",
    [
        RayTaskError("check", "trace", ValueError("no such option")),
        ActorDiedError(RayTaskError("__init__", "trace", ValueError("no such option"))),
        RuntimeEnvSetupError("no such image"),
        None,
    ],
)
def test_what_is_asked_for_wrongly_is_no_death(error: Exception | None) -> None:
    assert worker_died(WHAT, error) is None


@pytest.mark.parametrize(("status", "how"), [(-9, "by SIGKILL"), (-11, "by SIGSEGV"), (-77, "by signal 77"), (1, "with status 1")])
def test_vllm_tells_how_its_processes_ended(status: int, how: str) -> None:
    said = f"Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore_DP0': {status}}}"
    died = own_process_died("vLLM's process of an engine", RuntimeError(said))
    assert died is not None and died.how == how
    assert own_process_died("vLLM's process of an engine", RuntimeError("CUDA is not there")) is None


def test_a_death_is_a_fault_of_one_sentence_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert is_fault(DEAD)
    assert exit_status(pickle.loads(pickle.dumps(DEAD))) == 1
    said = capsys.readouterr().err
    assert said.startswith("flywheel: the worker of the environment 'search' died, by SIGKILL; the last that it logged is: last words.")
    assert said.count("\n") == 1


def test_its_log_is_kept_and_named(tmp_path: Path) -> None:
    kept = [DEAD.kept_in(tmp_path / "logs") for _ in range(2)]
    assert [died.file.name for died in kept if died.file is not None] == [
        "died-1-the-worker-of-the-environment-search.log",
        "died-2-the-worker-of-the-environment-search.log",
    ]
    assert (tmp_path / "logs" / "died-2-the-worker-of-the-environment-search.log").read_text().endswith("first\nlast words\n")
    assert f"its log is {tmp_path}/logs/died-2-" in str(kept[1])
