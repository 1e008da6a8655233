"""What a sandbox allows: its isolation, its limits, and what of the host can be read in it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from warehouse.settings import Section

MIB = 2**20


class SandboxConfig(Section):
    """The walls and the limits of a sandbox."""

    isolation: Literal["namespaces", "none"] = "namespaces"
    """`none` runs programs as the user's own, with no walls and half of the limits: for programs that are trusted."""
    wall_seconds: PositiveFloat = 10.0
    cpu_seconds: PositiveInt = 10
    """Processor time of each process."""
    memory_mib: PositiveInt = 512
    """What all processes together may hold; each may address twice as much, and memory beyond that is refused at once."""
    disk_mib: PositiveInt = 64
    """All files together, which lie in memory; also the size of the largest."""
    max_files: PositiveInt = 4096
    processes: int = Field(default=32, ge=1)
    """Processes and threads at once."""
    descriptors: int = Field(default=256, ge=16)
    """Open files of each process."""
    output_bytes: PositiveInt = 65_536
    """Kept of each of standard output and standard error; a program that writes more is ended."""
    libraries: bool = True
    """Whether the packages installed for this interpreter can be imported."""
    readable: tuple[str, ...] = ()
    """Absolute paths of the host that can be read as well, such as /usr/bin for programs that are not Python."""
