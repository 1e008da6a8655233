"""Memory that a piece of work takes, of which the kernel keeps the peak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident(name: str) -> int:
    """MiB of this process's memory that is there now (`VmRSS`), or was at its most since the peak began (`VmHWM`)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) // 1024


def begin_peak() -> int:
    """Let the peak begin anew; returns the MiB that are there now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def most_taken(work: Callable[[], Any]) -> int:
    """The MiB that some work takes at its most."""
    before = begin_peak()
    work()
    return resident("VmHWM") - before
