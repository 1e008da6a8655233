"""Who must answer: the Ray cluster and the Prefect server, where the configuration names one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from urllib.parse import urlsplit

from flows.doctor.check import Check

_PATIENCE_SECONDS = 20.0
_CLIENT_PORT = 10001


def ray_cluster(address: str | None) -> Check:
    """The cluster that rollouts run on; without one each run starts its own on this machine."""
    named = address or os.environ.get("RAY_ADDRESS")
    if not named:
        return Check("ray", "ok", f"{version('ray')}; no cluster is named: each run starts its own on this machine")
    fault = _client_fault(named) if named.startswith("ray://") else _cluster_fault(named)
    if fault is None:
        return Check("ray", "ok", f"{version('ray')}; {named} answers")
    advice = "Start it with `ray start --head`, name another in rollout.ray.address or RAY_ADDRESS, or name none."
    return Check("ray", "missing", f"{version('ray')}; {named} does not answer: {fault}", advice)


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
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        checked = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_SECONDS:.0f} seconds"
    said = checked.stderr.strip().splitlines()
    return None if checked.returncode == 0 else said[-1][:200] if said else f"exit status {checked.returncode}"


def _client_fault(address: str) -> str | None:
    """Why nothing listens where Ray's client would connect; None where something does."""
    place = urlsplit(address)
    try:
        socket.create_connection((place.hostname or "", place.port or _CLIENT_PORT), timeout=_PATIENCE_SECONDS).close()
    except OSError as error:
        return str(error)
    return None
