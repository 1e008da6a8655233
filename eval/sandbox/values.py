"""What runs in a sandbox, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
    """What came of a program: its output up to the limit, its exit status (a signal's number, negative; None where it was cut short)."""

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
