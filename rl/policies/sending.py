"""A policy's folder for a machine that does not see it: what lies in it, and the pieces that it is sent in.

Whether a machine sees a folder is told by the names, sizes and times of its files: another policy that lies at the same place there, as a
home's copy of last week does, is not taken for this one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PIECE_BYTES = 2**26
"""What is sent at once."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file of a policy: its name, its size in bytes, and when it was written, in nanoseconds."""

    name: str
    size: int
    written: int


def files_in(folder: Path) -> tuple[PolicyFile, ...]:
    """The files of a policy, by name; nothing where there is no such folder."""
    found = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return tuple(PolicyFile(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in found)


def pieces(folder: Path, files: Sequence[PolicyFile]) -> Iterator[tuple[str, bytes]]:
    """What lies in the files, in their order and from front to back, each piece with the name of its file."""
    for each in files:
        with (folder / each.name).open("rb") as file:
            yield each.name, file.read(PIECE_BYTES)
            while piece := file.read(PIECE_BYTES):
                yield each.name, piece


@dataclass(slots=True)
class ReceivedPolicy:
    """The files of the policy in folder `path` of another machine, as far as they have come."""

    path: str
    files: tuple[PolicyFile, ...]
    _folder: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="policy-"))

    def take(self, name: str, piece: bytes) -> None:
        """Append a piece to its file. Raises ValueError where no such file was announced."""
        if name not in {each.name for each in self.files} or Path(name).name != name:
            raise ValueError(f"no file {name!r} of {self.path} was announced")
        with (Path(self._folder.name) / name).open("ab") as file:
            file.write(piece)

    @property
    def folder(self) -> Path:
        """Where they lie. Raises ValueError where one of them has not come whole."""
        came = {each.name: each.size for each in files_in(Path(self._folder.name))}
        for each in self.files:
            if came.get(each.name, 0) != each.size:
                raise ValueError(f"of {each.name} of {self.path} {came.get(each.name, 0)} of {each.size} bytes have come")
        return Path(self._folder.name)

    def drop(self) -> None:
        """Delete them."""
        self._folder.cleanup()
