"""Whether a machine of a Ray cluster takes connections at all, which Ray's own client would try for half a minute to find out."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

REACH_SECONDS = 5.0
"""How long a cluster's machine may take to take a connection."""
CLIENT_PORT = 10_001
"""Where Ray's client connects unless another port is named."""


def reach(address: str, seconds: float = REACH_SECONDS) -> None:
    """Raise OSError where nothing listens at an address that names a host, ValueError where it names one wrongly.

    An address without a port is that of Ray's client (`ray://`), or none that can be tried, such as `auto`.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    port = place.port or (CLIENT_PORT if place.scheme == "ray" else None)
    if place.hostname is not None and port is not None:
        socket.create_connection((place.hostname, port), timeout=seconds).close()
