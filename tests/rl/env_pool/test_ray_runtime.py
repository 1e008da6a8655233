"""Ray that does not start in time is a fault of the machine, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from flows.pipeline import is_fault
from rl.ray_runtime import RayConfig, RayRuntime, _start_fault


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
