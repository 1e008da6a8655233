"""Ray's start, the temporary folders of processes, and how the death of a process is reported."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError, RuntimeEnvSetupError

from flows.cli import exit_status
from flows.pipeline import is_fault
from rl.ray_runtime import RayConfig, RayRuntime, _start_fault, make_folder, remove_leftovers
from rl.worker_death import WorkerDied, own_process_died, worker_died


def test_a_late_ray_process_is_a_fault() -> None:
    with pytest.raises(ConnectionError, match="Timed out"), _start_fault():
        raise RuntimeError("Timed out waiting for file /tmp/session/gcs_server_port_1")
    with pytest.raises(RuntimeError, match="no such option"), _start_fault():
        raise RuntimeError("no such option")


@pytest.mark.engine
def test_a_slow_start_of_ray_can_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise RuntimeError("the node is not known yet")

    clock = iter(range(0, 100_000, 20))
    monkeypatch.setattr("ray._private.services.get_node", late)
    monkeypatch.setattr("ray._private.node.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(ConnectionError, match="The current node timed out") as raised:
        RayRuntime(RayConfig(object_store_gib=0.1), cpus=2)
    assert is_fault(raised.value)


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = [tmp_path / f"flywheel-{what}-{gone.pid}-abc_123" for what in ("ray", "files")]
    names = (f"flywheel-ray-{os.getpid()}-x1", f"flywheel-{gone.pid}", f"other-ray-{gone.pid}-x1", "notes")
    strangers = [tmp_path / name for name in names]
    for folder in (*left, *strangers):
        folder.mkdir()
        (folder / "socket").touch()
    mine = make_folder("ray", tmp_path)
    assert mine.name.startswith(f"flywheel-ray-{os.getpid()}-")
    assert [folder.exists() for folder in left] == [False, False]
    assert all((folder / "socket").exists() for folder in strangers)
    remove_leftovers(tmp_path)
    assert mine.is_dir()


WHAT = "the worker of the environment 'search'"
GONE = RayActorError("00", "The actor died unexpectedly.\n\tpid: 4711\n\tip: 127.0.0.1\nThe process is killed by SIGKILL by OOM killer")
DEAD = WorkerDied(WHAT, "by SIGKILL", "first\nlast words\n")


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (GONE, "without a trace, as if by SIGKILL"),
        (OutOfMemoryError("Task was killed due to the node running low on memory"), "ended by Ray"),
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
def test_request_errors_are_not_deaths(error: Exception | None) -> None:
    assert worker_died(WHAT, error) is None


@pytest.mark.parametrize(("status", "how"), [(-9, "by SIGKILL"), (-11, "by SIGSEGV"), (-77, "by signal 77"), (1, "with status 1")])
def test_the_exit_of_vllms_processes_is_reported(status: int, how: str) -> None:
    said = f"Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore_DP0': {status}}}"
    died = own_process_died("the vLLM process of an engine", RuntimeError(said))
    assert died is not None and died.how == how
    assert own_process_died("the vLLM process of an engine", RuntimeError("CUDA is not there")) is None


def test_a_death_is_a_fault_of_one_sentence_with_status_1_and_its_log_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_fault(DEAD)
    assert exit_status(pickle.loads(pickle.dumps(DEAD))) == 1
    said = capsys.readouterr().err
    assert "'search' died, by SIGKILL" in said and "last words" in said and said.count("\n") == 1
    kept = [DEAD.kept_in(tmp_path / "logs") for _ in range(2)]
    files = [died.file for died in kept if died.file is not None]
    assert files == sorted((tmp_path / "logs").iterdir()) and len(files) == 2, "one file for each death"
    assert files[1].read_text().endswith("first\nlast words\n") and str(files[1]) in str(kept[1])
