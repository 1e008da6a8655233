"""Download public data sets over HTTPS: transfers resume, sizes are limited, and digests are checked before a file gets its final name.

Incomplete files are named NAME.part and folders .NAME.part, so readers never see partial data. Files that differ from the pin are removed.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from warehouse.drafts import DRAFT
from warehouse.errors import RequestError
from warehouse.public_data.catalogue import VARIABLE, PinnedArchive, PinnedFile, PublicDataSet, PublicFolder

ATTEMPTS = 4
FIRST_WAIT_SECONDS = 0.5
"""Wait before the second attempt in seconds; doubles each time."""
_SECONDS = httpx.Timeout(30.0, connect=10.0)
_LOCAL = ("localhost", "127.0.0.1", "::1")
_CUT = (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError)
_TOO_MANY_REQUESTS, _OF_SERVERS = 429, 500

Told = Callable[[str, int, int], None]
"""Progress callback: URL, bytes received, and maximum bytes."""


def open_client() -> httpx.Client:
    """HTTPS-only client that requests unencoded content, so that bytes can be counted and transfers resumed."""
    hooks = {"request": [_refuse_open_line]}
    return httpx.Client(follow_redirects=True, timeout=_SECONDS, headers={"Accept-Encoding": "identity"}, event_hooks=hooks)


def _refuse_open_line(request: httpx.Request) -> None:
    """Reject plain HTTP, also in redirects, except to this machine."""
    if request.url.scheme != "https" and request.url.host not in _LOCAL:
        raise RequestError(f"{request.url} is not HTTPS: nothing is fetched over an unprotected connection.")


def download(client: httpx.Client, wanted: PinnedFile, folder: Path, told: Told) -> None:
    """Download a file into `folder` unless it is complete. Raises RequestError if it cannot be fetched or differs from the pin."""
    target = folder / wanted.name
    if target.is_file():
        return
    part = _received(client, wanted.url, folder / f"{wanted.name}{DRAFT}", wanted.size, told)
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted.sha256:
        part.unlink()
        raise _other_content(wanted.url, found, wanted.sha256)
    part.replace(target)


def download_archive(client: httpx.Client, wanted: PinnedArchive, folder: Path, told: Told) -> None:
    """Download the files of an archive into `folder`, all or none. Raises RequestError."""
    part = _received(client, wanted.url, folder / f"archive{DRAFT}", wanted.size, told)
    try:
        members = read_members(part.read_bytes(), wanted)
    finally:
        part.unlink()
    for name, content in members.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def read_members(packed: bytes, wanted: PinnedArchive) -> dict[str, bytes]:
    """Files of a `tar.gz` that match the pattern, by path below the top folder. Raises RequestError.

    The archive may unpack to at most twice the wanted bytes.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            plain = file.read(2 * wanted.size + 1)
        if len(plain) > 2 * wanted.size:
            raise RequestError(f"{wanted.url} unpacks to more than {2 * wanted.size:,} bytes: nothing was kept.")
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            members = dict(_members(tar, wanted.members))
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise RequestError(f"{wanted.url} is not a readable archive ({error}): nothing was kept; try again.") from error
    if (digest := digest_of_tree(members)) != wanted.sha256:
        raise _other_content(wanted.url, digest, wanted.sha256)
    return members


def _members(tar: tarfile.TarFile, pattern: str) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        name = member.name.partition("/")[2]
        if re.fullmatch(pattern, name) and (file := tar.extractfile(member) if member.isreg() else None) is not None:
            yield name, file.read()


def digest_of_tree(files: Mapping[str, bytes]) -> str:
    """SHA-256 of the list of files in `sha256sum` format, ordered by path."""
    lines = (f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _other_content(url: str, found: str, wanted: str) -> RequestError:
    return RequestError(f"{url} has the SHA-256 {found}, but {wanted} was expected: nothing was kept; try again.")


def _received(client: httpx.Client, url: str, part: Path, most: int, told: Told) -> Path:
    """Complete `part` from `url`, resuming after its current content."""
    retrying = Retrying(
        retry=retry_if_exception(_may_pass), stop=stop_after_attempt(ATTEMPTS), wait=wait_exponential(FIRST_WAIT_SECONDS), reraise=True
    )
    try:
        retrying(_receive, client, url, part, most, told)
    except httpx.HTTPStatusError as error:
        raise RequestError(f"{url} cannot be fetched: the server returned {error.response.status_code}; try again later.") from error
    except httpx.HTTPError as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise RequestError(f"{url} cannot be fetched ({why}): check the network and try again; the partial download is kept.") from error
    return part


def _may_pass(error: BaseException) -> bool:
    """Whether a retry may help; an unreachable server is reported immediately."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == _TOO_MANY_REQUESTS or error.response.status_code >= _OF_SERVERS
    return isinstance(error, _CUT)


def _receive(client: httpx.Client, url: str, part: Path, most: int, told: Told) -> None:
    """One request. A server without range support resends everything; status 416 means nothing is left."""
    have = part.stat().st_size if part.is_file() else 0
    if have == most:
        return
    with client.stream("GET", url, headers={"Range": f"bytes={have}-"} if have else {}) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return
        response.raise_for_status()
        with part.open("ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as file:
            for chunk in response.iter_raw():
                if file.tell() + len(chunk) > most:
                    part.unlink()
                    raise RequestError(f"{url} has more than the {most:,} bytes that were expected: nothing was kept.")
                file.write(chunk)
                told(url, file.tell(), most)


def fetch(data: PublicDataSet, root: Path, told: Told) -> Path:
    """Download a data set into `root` unless present, resuming interrupted transfers; return its entry.

    Raises RequestError if it cannot be fetched, differs from the pin, or `root` is not writable.
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
        raise RequestError(f"{root} cannot be written ({error}): set {VARIABLE} to another folder.") from error
    if (place := data.place(root)) is None:
        raise RequestError(f"{root} has a {data.entries[0]} with other content: move it away, and fetch {data.name} again.")
    return place


def _fetch_folder(client: httpx.Client, folder: PublicFolder, root: Path, told: Told) -> None:
    draft = root / f".{folder.name}{DRAFT}"
    draft.mkdir(exist_ok=True)
    for part in folder.parts:
        if isinstance(part, PinnedFile):
            download(client, part, draft, told)
        else:
            download_archive(client, part, draft, told)
    draft.replace(root / folder.name)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Lock `root` against other downloading processes. Raises RequestError if locked."""
    with (root / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"another process is fetching into {root}; wait for it.") from error
        yield
