"""What a chaos test writes down in its folder, so that it can be stopped at any moment and read afterwards.

`chaos.json` holds what was asked for, `faults.jsonl` a line for each fault, `drivers.jsonl` one for each process of `flywheel run` that
has ended. `committed/NAME.json` holds the trajectories that a home's lake had.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.faults import FaultKind
from warehouse.errors import RequestError

UNDISTURBED = "undisturbed"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was made: in which home, when (UTC, ISO 8601), to which process, while which run of a stage was at work.

    `process` is None for a disk, `at_work` where nothing was. `committed` counts the trajectories that the lake had before.
    """

    home: str
    moment: str
    kind: FaultKind
    process: int | None
    at_work: str | None
    committed: int


@dataclass(frozen=True, slots=True)
class DriverEnd:
    """A process of `flywheel run` that ended: how long it ran, its exit status, the faults it met.

    `left` are processes of its run that outlived it by more than their time, `held` the files outside the home that they had open.
    """

    home: str
    process: int
    seconds: float
    status: int
    faults: int
    left: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    """The folder of a chaos test."""

    root: Path

    @property
    def undisturbed(self) -> Path:
        """The home that nothing was done to."""
        return self.root / UNDISTURBED

    def disturbed(self, number: int) -> Path:
        """The home of that number, from 1."""
        return self.root / f"disturbed-{number}"

    def disturbed_homes(self) -> list[Path]:
        """Those that were begun, in order."""
        return sorted(self.root.glob("disturbed-*"), key=lambda home: int(home.name.partition("-")[2]))

    def log(self, home: Path) -> Path:
        """Log of the drivers of a home."""
        return self.root / "logs" / f"{home.name}.log"

    def claim(self, asked: Mapping[str, Any]) -> None:
        """Make the folder, or check that it is of the chaos test that is asked for.

        Raises:
            RequestError: it is another chaos test's, or none's.
        """
        wanted, file = json.loads(json.dumps(asked)), self.root / "chaos.json"
        if not file.is_file():
            if self.root.is_dir() and any(self.root.iterdir()):
                raise RequestError(f"{self.root} is not empty and holds no chaos.json; name an empty or new folder with --dir.")
            (self.root / "logs").mkdir(parents=True)
            (self.root / "committed").mkdir()
            _write(file, wanted)
        else:
            stored = json.loads(file.read_text())
            differing = sorted(key for key in stored | wanted if stored.get(key) != wanted.get(key))
            if differing:
                raise RequestError(
                    f"{self.root} is another chaos test's: {', '.join(differing)} differ; choose another --dir or the same settings."
                )

    def faults(self) -> list[InjectedFault]:
        """The faults that were made, in order."""
        return [InjectedFault(**(row | {"kind": FaultKind(row["kind"])})) for row in self._rows("faults.jsonl")]

    def made(self) -> Counter[FaultKind]:
        """How many were made of each kind."""
        return Counter(fault.kind for fault in self.faults())

    def drivers(self) -> list[DriverEnd]:
        """The drivers that ended, in order."""
        return [DriverEnd(**(row | {"left": tuple(row["left"]), "held": tuple(row["held"])})) for row in self._rows("drivers.jsonl")]

    def note(self, line: InjectedFault | DriverEnd) -> None:
        """Write down a fault or the end of a driver."""
        with (self.root / ("faults.jsonl" if isinstance(line, InjectedFault) else "drivers.jsonl")).open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def committed(self, home: Path) -> dict[str, str]:
        """Digests of the trajectories that the lake of `home` had, by their ids."""
        file = self._committed(home)
        return json.loads(file.read_text()) if file.is_file() else {}

    def note_committed(self, home: Path, digests: Mapping[str, str]) -> None:
        """Add digests to those that were noted before; what was noted first stays."""
        _write(self._committed(home), dict(digests) | self.committed(home))

    def _committed(self, home: Path) -> Path:
        return self.root / "committed" / f"{home.name}.json"

    def _rows(self, name: str) -> list[dict[str, Any]]:
        file = self.root / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _write(file: Path, value: Any) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(value) + "\n")
    draft.replace(file)
