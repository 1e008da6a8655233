"""What runs in a sandbox, what it is allowed, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from warehouse.settings import Section

MIB = 2**20


class SandboxConfig(Section):
    """The isolation and the limits of a sandbox, and what of the host can be read in it."""

    isolation: Literal["namespaces", "none"] = "namespaces"
    """`none` runs programs as the user's own, with no isolation and half of the limits: for programs that are trusted."""
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


class Ending(StrEnum):
    """How a program ended."""

    FINISHED = "finished"
    """By itself, with whatever status."""
    KILLED = "killed"
    """By a signal that was none of the sandbox's: a crash, or its own doing."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"


class SandboxFault(Exception):
    """The sandbox itself failed; this says nothing about the program."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: `argv`, the first of it looked up within the sandbox, in a folder that holds `files` and nothing else."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by name; a name is relative to the program's folder and stays in it."""
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside the few that every program gets; nothing of the host's own."""
    channel: int | None = None
    """A descriptor of the host's that the program finds as its descriptor 3, such as one end of a socket pair."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The result of a program: its output up to the limit, its exit status (a signal's number, negative; None where it was cut short)."""

    ending: Ending
    status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether it finished with status 0."""
        return self.ending is Ending.FINISHED and self.status == 0

    @property
    def stdout_text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def stderr_text(self) -> str:
        """Standard error as text."""
        return self.stderr.decode(errors="replace")
