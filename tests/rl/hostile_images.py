"""PNG files that are small and whose headers claim any size."""

from __future__ import annotations

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(width: int, height: int, rows: bytes = b"", *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG whose header says `width` and `height`, whatever its `rows` are; `extra` chunks stand before them."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return SIGNATURE + b"".join(_chunk(*each) for each in ((b"IHDR", header), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
