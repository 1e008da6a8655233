"""A server of files on this machine, that knows ranges unless told otherwise, and cuts lines where told; and data sets as it has them."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from warehouse.public_data.catalogue import PinnedArchive, PinnedFile, PublicDataSet, PublicFolder, Repository

NOWHERE = Repository("nobody/nothing", "0" * 40)


@dataclass
class Host:
    """Paths and what is served there; `cuts` are the bytes after which the coming answers break off."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def pinned(self, name: str, content: bytes) -> PinnedFile:
        self.files[f"/{name}"] = content
        return PinnedFile(name=name, url=f"{self.url}/{name}", size=len(content), sha256=sha256(content).hexdigest())

    def data_set(self, name: str, **files: bytes) -> PublicDataSet:
        """A data set of one folder, which stands for it."""
        folder = PublicFolder(f"folder_{name}", NOWHERE, tuple(self.pinned(each, content) for each, content in files.items()))
        return PublicDataSet(name=name, about="A test.", licence="CC0", entries=(folder.name,), folders=(folder,))

    def mirrored(self, data: PublicDataSet) -> PublicDataSet:
        """Its pins are as they are, and its addresses are here."""
        folders = tuple(replace(folder, parts=tuple(self._mirrored(folder, part) for part in folder.parts)) for folder in data.folders)
        return replace(data, folders=folders)

    def _mirrored(self, folder: PublicFolder, part: PinnedFile | PinnedArchive) -> PinnedFile | PinnedArchive:
        name = part.name if isinstance(part, PinnedFile) else "archive"
        return replace(part, url=f"{self.url}/{folder.name}/{name}")


@contextmanager
def serving() -> Iterator[Host]:
    host = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            host.asked.append((self.path, wanted))
            content = host.files.get(self.path)
            if content is None or host.statuses:
                self.send_error(host.statuses.pop(0) if host.statuses else 404)
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and host.ranges else 0  # type: ignore[index]
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : start + host.cuts.pop(0)] if host.cuts else content[start:])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    host.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()


def packed(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """A tar.gz with files under the very names that are given, and symbolic links."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return whole.getvalue()
