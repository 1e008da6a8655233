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
    """`process` is None for a disk, `at_work` where nothing was; `committed` counts the trajectories that the lake had."""

    home: str
    moment: str
    kind: FaultKind
    process: int | None
    at_work: str | None
    committed: int


@dataclass(frozen=True, slots=True)
class DriverEnd:
    """`left` are processes of its run that outlived it, `held` the files outside the home that they had open."""

    home: str
    process: int
    seconds: float
    status: int
    faults: int
    left: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    root: Path

    @property
    def undisturbed(self) -> Path:
        return self.root / UNDISTURBED

    def disturbed(self, number: int) -> Path:
        """From 1."""
        return self.root / f"disturbed-{number}"

    def disturbed_homes(self) -> list[Path]:
        return sorted(self.root.glob("disturbed-*"), key=lambda home: int(home.name.partition("-")[2]))

    def log(self, home: Path) -> Path:
        return self.root / "logs" / f"{home.name}.log"

    def claim(self, asked: Mapping[str, Any]) -> None:
        """Make the folder, or check that it is of this chaos test."""
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
        return [InjectedFault(**(row | {"kind": FaultKind(row["kind"])})) for row in self._rows("faults.jsonl")]

    def made(self) -> Counter[FaultKind]:
        return Counter(fault.kind for fault in self.faults())

    def drivers(self) -> list[DriverEnd]:
        return [DriverEnd(**(row | {"left": tuple(row["left"]), "held": tuple(row["held"])})) for row in self._rows("drivers.jsonl")]

    def note(self, line: InjectedFault | DriverEnd) -> None:
        with (self.root / ("faults.jsonl" if isinstance(line, InjectedFault) else "drivers.jsonl")).open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def committed(self, home: Path) -> dict[str, str]:
        file = self._committed(home)
        return json.loads(file.read_text()) if file.is_file() else {}

    def note_committed(self, home: Path, digests: Mapping[str, str]) -> None:
        """What was noted first stays."""
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
