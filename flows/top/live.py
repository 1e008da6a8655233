"""The loop of `flywheel top`: look, show, wait. It ends with Ctrl-C and touches nothing."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from rich.console import Console
from rich.live import Live

from flows.home import Home
from flows.lakes import open_lake
from flows.top.state import Watcher
from flows.top.view import frame


def watch(root: Path, once: bool, every: float) -> None:
    """Show the wheel in `root`: one frame, or a new one every so many seconds until it is interrupted.

    Raises:
        RequestError: `root` holds no lake or no configuration.
    """
    console = Console()
    with open_lake(root) as lake:
        watcher = Watcher(Home(root), lake)
        if once:
            console.print(frame(watcher.look()))
            return
        ended = threading.Event()
        signal.signal(signal.SIGINT, lambda *_: ended.set())  # at the end of a look, and never in the middle of a query
        with Live(frame(watcher.look()), console=console, screen=True, auto_refresh=False) as live:
            while not ended.wait(every):
                live.update(frame(watcher.look()), refresh=True)
