"""Ray's start, and the temporary folders of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.pipeline import is_fault
from rl.ray_runtime import RayConfig, RayRuntime, _start_fault, make_folder, remove_leftovers


def test_a_process_of_rays_that_is_late_is_a_fault_and_another_error_is_not() -> None:
    with pytest.raises(ConnectionError, match="did not start on this machine: Timed out"), _start_fault():
        raise RuntimeError("Timed out waiting for file /tmp/session/gcs_server_port_1")
    with pytest.raises(RuntimeError, match="no such option"), _start_fault():
        raise RuntimeError("no such option")


@pytest.mark.engine
def test_a_machine_too_busy_for_ray_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise RuntimeError("the node is not known yet")

    clock = iter(range(0, 100_000, 20))
    monkeypatch.setattr("ray._private.services.get_node", late)
    monkeypatch.setattr("ray._private.node.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(ConnectionError, match="did not start on this machine: The current node timed out") as raised:
        RayRuntime(RayConfig(object_store_gib=0.1), cpus=2)
    assert is_fault(raised.value)


def test_the_folder_of_a_process_that_is_gone_is_removed_and_those_of_the_living_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = [tmp_path / f"flywheel-{what}-{gone.pid}-abc_123" for what in ("ray", "files")]
    strangers = [
        tmp_path / name for name in (f"flywheel-ray-{os.getpid()}-x1", f"flywheel-{gone.pid}", f"other-ray-{gone.pid}-x1", "notes")
    ]
    for folder in (*left, *strangers):
        folder.mkdir()
        (folder / "socket").touch()
    mine = make_folder("ray", tmp_path)
    assert mine.name.startswith(f"flywheel-ray-{os.getpid()}-")
    assert [folder.exists() for folder in left] == [False, False]
    assert all((folder / "socket").exists() for folder in strangers)
    remove_leftovers(tmp_path)
    assert mine.is_dir()
