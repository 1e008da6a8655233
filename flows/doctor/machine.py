"""What a check finds, and what the machine gives: cores, memory, disk, a sandbox around programs, data."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flows.config import FlywheelConfig

State = Literal["ok", "warn", "missing"]

GIB = 2**30
"""As `rl.hardware` has it, which loads DuckDB; the doctor must answer where nothing loads."""
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `advice` says what to do, and is empty where all is well."""

    name: str
    state: State
    detail: str
    advice: str = ""


def cores() -> Check:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores >= 2:
        return Check("cores", "ok", f"{cores} cores")
    return Check("cores", "warn", "1 core", "Give it 2 cores: the engine and the learner share what there is.")


def processor() -> Check:
    """Whether the processor multiplies in bfloat16, which chat models want where there is no GPU."""
    import torch

    from rl.hardware import cpu_has_bfloat16

    if torch.cuda.is_available():
        return Check("processor", "ok", "learners and engines may compute on a GPU")
    if cpu_has_bfloat16():
        return Check("processor", "ok", "multiplies in bfloat16")
    advice = "Small policies learn here all the same; for chat models take a GPU, or a processor with AVX-512 BF16 or AMX."
    return Check("processor", "warn", "no bfloat16: all is computed in float32", advice)


def memory() -> Check:
    """Memory of the machine, and of the container where there is one."""
    import psutil

    memory, limit = psutil.virtual_memory(), total_memory()
    detail = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB"
    if limit < memory.total:
        detail += f", this container may use {limit / GIB:.1f} GiB"
    if min(memory.available, limit) >= 6 * GIB:
        return Check("memory", "ok", detail)
    return Check("memory", "warn", detail, "The quickstart is made for 8 GiB: close other programs or lower `rollout.concurrency`.")


def total_memory() -> int:
    """Bytes of memory of this machine, or of its container where that may use less."""
    import psutil

    path, total = Path("/sys/fs/cgroup/memory.max"), int(psutil.virtual_memory().total)
    text = path.read_text().strip() if path.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def disk(folder: Path) -> Check:
    """Free space where `folder` is or will be."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free / GIB
    if free >= 5:
        return Check("disk", "ok", f"{free:.0f} GiB free at {existing}")
    advice = "Free some space or choose another --home: a run writes up to 5 GiB."
    return Check("disk", "warn", f"{free:.1f} GiB free at {existing}", advice)


def placement(config: FlywheelConfig) -> Check:
    """Whether engines, learners, environments and tools find room on the machines that Ray has."""
    from flows.placement import check_placement, phases
    from warehouse.errors import RequestError

    try:
        check_placement(config)
    except RequestError as error:
        return Check("placement", "missing", str(error), "Lower what it names, or run it on machines with more.")
    fullest = max((phase.gpus for phase in phases(config)), default=0)
    return Check("placement", "ok", f"all stages find room; the fullest reserves {fullest:g} GPUs" if fullest else "no stage reserves GPUs")


def sandbox() -> Check:
    """Runs a program in the sandbox that tries to get out."""
    from eval.sandbox.sandbox import isolation

    found = isolation()
    return Check("sandbox", "ok" if found.granted else "warn", found.detail, found.advice)


def public_data() -> Check:
    """The public data sets that some profiles and suites read."""
    from warehouse.public_data.catalogue import DATA_SETS
    from warehouse.public_data.places import data_root

    root = data_root()
    there = [name for name, data in DATA_SETS.items() if data.place(root) is not None]
    absent = [name for name in DATA_SETS if name not in there]
    detail = f"{', '.join(there) or 'none'} in {root}"
    if not absent:
        return Check("public data", "ok", detail)
    advice = f"`flywheel data get {' '.join(absent)}` fetches the others; only profiles such as `movies` and some suites need them."
    return Check("public data", "warn", detail, advice)


def shared_memory(wanted_gib: float) -> Check:
    """Ray's objects lie in shared memory; where that is too small they lie on the disk, and every rollout waits for it."""
    if not _SHARED_MEMORY.is_dir():
        return Check(
            "shared memory", "warn", f"there is no {_SHARED_MEMORY}", "Mount a tmpfs there: Ray's objects lie on the disk without it."
        )
    free = shutil.disk_usage(_SHARED_MEMORY).free / GIB
    detail = f"{free:.1f} GiB free, {wanted_gib:g} wanted for Ray's objects"
    if free >= wanted_gib:
        return Check("shared memory", "ok", detail)
    advice = (
        f"Give the container more, such as `docker run --shm-size={max(1, round(2 * wanted_gib))}g`, or lower rollout.ray.object_store_gib."
    )
    return Check("shared memory", "warn", detail, advice)
