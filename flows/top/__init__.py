"""`flywheel top`, a live view on a wheel: look, show, wait. It ends with Ctrl-C and touches nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.live import Live

from flows.home import Home
from flows.lakes import open_lake
from flows.screen import Screen
from flows.top.state import Watcher
from flows.top.view import frame


def watch(root: Path, once: bool, every: float) -> None:
    """Show the wheel in `root`: one frame, or a new one every so many seconds until it is interrupted.

    Raises:
        RequestError: `root` holds no lake or no configuration.
    """
    console = Screen()
    with open_lake(root) as lake:
        watcher = Watcher(Home(root), lake)
        if once:
            console.print(frame(watcher.look()))
            return
        interrupts = Interrupts(signal.SIGINT)  # at the end of a look, and never in the middle of a query
        with Live(frame(watcher.look()), console=console, screen=True, auto_refresh=False) as live:
            while not interrupts.wait(every):
                live.update(frame(watcher.look()), refresh=True)


class Interrupts:
    """A signal as something to wait for.

    A handler runs in the middle of whatever the main thread does, of the wait too: `SimpleQueue.put` may, and `Event.set` would then
    wait for itself for ever.
    """

    def __init__(self, number: signal.Signals) -> None:
        self._come: SimpleQueue[int] = SimpleQueue()
        signal.signal(number, lambda came, _: self._come.put(came))

    def wait(self, seconds: float) -> bool:
        """Wait until the signal has come, for so many seconds at most; whether it has."""
        try:
            self._come.get(timeout=seconds)
        except Empty:
            return False
        return True
