"""Ports for servers that tests start in processes of their own."""

from __future__ import annotations

import socket
from urllib.request import urlopen


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server answers there."""
    try:
        with urlopen(url, timeout=10):
            return True
    except OSError:
        return False
