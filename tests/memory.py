"""Peak memory of a piece of work, as the kernel counts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident(name: str) -> int:
    """MiB of this process's memory now (`VmRSS`), or at the peak since the last reset (`VmHWM`)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) // 1024


def begin_peak() -> int:
    """Reset the peak; returns the MiB that are resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def most_taken(work: Callable[[], Any]) -> int:
    """The peak of MiB that `work` adds."""
    before = begin_peak()
    work()
    return resident("VmHWM") - before
