"""Machines available to Ray: the local one as Ray would see it, or those of a cluster."""

from __future__ import annotations

import logging
import math

import ray

from rl.placement import Machine
from rl.ray_runtime import RayConfig, RayRuntime, reach
from warehouse.errors import RequestError


def machines(config: RayConfig) -> list[Machine]:
    """Machines on which actors may be placed; a cluster is only queried.

    Raises:
        RequestError: no cluster answers at the address, or `gpus` exceeds what CUDA_VISIBLE_DEVICES allows.
    """
    return [_this_machine(config.gpus)] if config.address is None else _cluster(config)


def _this_machine(declared: int | None) -> Machine:
    """The local machine with unlimited CPUs, which are a reservation here, not a limit."""
    visible = visible_gpus()
    if declared is not None and visible is not None and declared > visible:
        raise RequestError(f"rollout.ray.gpus = {declared} exceeds the {visible} of CUDA_VISIBLE_DEVICES: lower it, or unset the variable.")
    return Machine("this machine", math.inf, own_gpus() if declared is None else declared)


def own_gpus() -> int:
    """Number of GPUs that Ray would detect locally, respecting `CUDA_VISIBLE_DEVICES`."""
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    manager, count = ResourceAndLabelSpec._get_current_node_accelerator(None, {})
    return count if manager is not None and manager.get_resource_name() == "GPU" else 0


def visible_gpus() -> int | None:
    """Number of GPUs in `CUDA_VISIBLE_DEVICES`; None if unset."""
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    named = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    return None if named is None else len(named)


def _cluster(config: RayConfig) -> list[Machine]:
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        reach(str(config.address))
        runtime = RayRuntime(config, 0)
    except (OSError, RuntimeError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RequestError(
            f"rollout.ray.address: no Ray cluster answers at {config.address} ({line[:200]}); start one, or set another address."
        ) from error
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    finally:
        runtime.close()
    return [
        Machine(f"node {node['NodeManagerAddress']}", node["Resources"].get("CPU", 0.0), int(node["Resources"].get("GPU", 0)))
        for node in nodes
    ]
