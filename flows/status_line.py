"""The last line of a terminal while a stage is at work: which, how far, and a bar; above it the log goes on."""

from __future__ import annotations

import logging
import shutil
import time
from typing import TYPE_CHECKING, TextIO

from rl.terminal import in_line

if TYPE_CHECKING:
    from flows.operations.control import StageProgress

WIDTH = 30
_CLEAR = "\r\x1b[2K"


class StatusLine(logging.StreamHandler[TextIO]):
    """A log on a terminal that keeps one line below itself up to date."""

    _shown = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line of the log above the one that is kept."""
        if self._shown:
            self.stream.write(_CLEAR)
        super().emit(record)
        self._draw()

    def show(self, stage: StageProgress | None) -> None:
        """Show how far a stage is; None takes the line away."""
        self.acquire()
        try:
            if self._shown:
                self.stream.write(_CLEAR)
            self._shown = "" if stage is None else line(stage, time.time())
            self._draw()
        finally:
            self.release()

    def _draw(self) -> None:
        self.stream.write(self._shown[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()


def show_status(stage: StageProgress | None) -> None:
    """Show how far a stage is where the log of this process goes to a terminal."""
    for handler in logging.getLogger("flywheel").handlers:
        if isinstance(handler, StatusLine):
            handler.show(stage)


def line(stage: StageProgress, now: float) -> str:
    """A bar, the stage, and how far it is."""
    from flows.operations.control import position  # Pydantic: not before a stage is at work

    return in_line(f"{bar(stage, now)}  {stage.run}: {position(stage)}")


def bar(stage: StageProgress, now: float) -> str:
    """What is done of a stage; where nobody knows how long it is, a mark that moves each second."""
    if stage.steps:
        done = WIDTH * min(stage.step or 0, stage.steps) // stage.steps
        return "█" * done + "░" * (WIDTH - done)
    place = int(now) % WIDTH
    return "░" * place + "█" + "░" * (WIDTH - place - 1)
