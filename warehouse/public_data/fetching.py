"""A public data set fetched into a folder: whole, or not under its name.

A folder of it is filled as `.NAME.part` and gets its name when all its files are there and checked, so a reader never finds half of one.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from warehouse.errors import RequestError
from warehouse.public_data.download import Told, download, download_archive, open_client
from warehouse.public_data.places import VARIABLE
from warehouse.public_data.sets import PinnedFile, PublicDataSet, PublicFolder


def fetch(data: PublicDataSet, root: Path, told: Told) -> Path:
    """Bring a data set into `root` and return where readers find it there; what is there already is left as it is.

    Fetched again after it was cut, it goes on where it stopped.

    Raises:
        RequestError: it cannot be fetched, is not what was pinned, or `root` cannot be written.
    """
    if (place := data.place(root)) is not None:
        return place
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root), open_client() as client:
            for folder in data.folders:
                if not (root / folder.name).exists():
                    _fetch_folder(client, folder, root, told)
    except OSError as error:
        raise RequestError(f"{root} cannot be written ({error}): let {VARIABLE} name another folder.") from error
    if (place := data.place(root)) is None:
        raise RequestError(f"{root} has something else in the place of {data.entries[0]}: move it away, and fetch {data.name} again.")
    return place


def _fetch_folder(client: httpx.Client, folder: PublicFolder, root: Path, told: Told) -> None:
    draft = root / f".{folder.name}.part"
    draft.mkdir(exist_ok=True)
    for part in folder.parts:
        if isinstance(part, PinnedFile):
            download(client, part, draft, told)
        else:
            download_archive(client, part, draft, told)
    draft.replace(root / folder.name)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold `root` against others who fetch into it: two would write into one file."""
    with (root / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"another process is fetching into {root}; wait for it.") from error
        yield
