"""What a public data set is: folders of files, each file at a commit of its repository, with its bytes and their SHA-256."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """A file of `size` bytes with this SHA-256, called `name` here."""

    name: str
    url: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedArchive:
    """A packed tree, of which the files whose path fully matches `members` are taken: `size` bytes of them.

    Archives are packed anew for whoever asks, so nothing is known of the packed bytes: `sha256` is that of the list of files as
    `sha256sum` prints it, in the order of their paths.
    """

    url: str
    members: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Repository:
    """A public repository of GitHub at one commit."""

    name: str
    commit: str

    @property
    def address(self) -> str:
        """The page of the commit."""
        return f"https://github.com/{self.name}/tree/{self.commit}"

    def file(self, path: str, size: int, sha256: str, name: str | None = None) -> PinnedFile:
        """A file of the repository, called as it is there unless `name` says otherwise."""
        url = f"https://raw.githubusercontent.com/{self.name}/{self.commit}/{path}"
        return PinnedFile(name=name or PurePosixPath(path).name, url=url, size=size, sha256=sha256)

    def archive(self, members: str, size: int, sha256: str) -> PinnedArchive:
        """The files of the repository whose path matches `members`."""
        return PinnedArchive(url=f"https://codeload.github.com/{self.name}/tar.gz/{self.commit}", members=members, size=size, sha256=sha256)

    def folder(self, name: str, *parts: PinnedFile | PinnedArchive) -> PublicFolder:
        """A folder of a data set that is made of parts of the repository."""
        return PublicFolder(name, self, parts)


@dataclass(frozen=True, slots=True)
class PublicFolder:
    """A folder of a data set, and what it is fetched from."""

    name: str
    repository: Repository
    parts: tuple[PinnedFile | PinnedArchive, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataSet:
    """A data set that suites and profiles name.

    `entries` are the files or folders that stand for it, the first that is there: a sample may stand in for the whole.
    """

    name: str
    about: str
    licence: str
    entries: tuple[str, ...]
    folders: tuple[PublicFolder, ...]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(part.size for folder in self.folders for part in folder.parts)

    @property
    def sources(self) -> tuple[str, ...]:
        """The pages that it comes from."""
        return tuple(folder.repository.address for folder in self.folders)

    def place(self, root: Path) -> Path | None:
        """Where readers find it under `root`; None where it is not there whole."""
        if not all((root / folder.name).is_dir() for folder in self.folders):
            return None
        return next((root / entry for entry in self.entries if (root / entry).exists()), None)
