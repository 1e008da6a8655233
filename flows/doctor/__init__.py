"""What this machine has, what is missing and what to do about it: the checks behind `flywheel doctor`.

Each check looks at one thing and imports nothing heavy unless that is the check; what goes wrong inside a check is its
finding, so that one broken package never hides the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flows.doctor.machine import Check, cores, disk, memory, placement, processor, public_data, sandbox, shared_memory
from flows.doctor.model import model
from flows.doctor.software import cuda_builds, duckdb_extensions, prefect_server, python, ray_cluster, torch_build, versions, vllm

__all__ = ["Check", "diagnose"]


def diagnose(home: Path | None = None, profile: str | None = None, path: Path | None = None) -> list[Check]:
    """All checks, in the order in which a person would mend them.

    `home` is the folder whose disk and configuration count, `profile` a configuration that has no home yet, and `path` a model to
    look at in the place of the configured one.

    Raises:
        RequestError: there is no such profile, or it is wrong.
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
    """The finding of one check. A broken installation raises anything at import, hence the broad net."""
    try:
        return check()
    except Exception as error:
        advice = "Run `make setup` to install the locked packages again."
        return Check(name, "missing", f"{type(error).__name__}: {str(error)[:300]}", advice)
