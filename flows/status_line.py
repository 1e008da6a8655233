"""The status line at the bottom of a terminal: the running stage and a progress bar below the log."""

from __future__ import annotations

import logging
import shutil
import time
from typing import TYPE_CHECKING, TextIO

from rl.terminal import bar, in_line

if TYPE_CHECKING:
    from flows.operations.control import StageProgress

WIDTH = 30
_CLEAR = "\r\x1b[2K"


class StatusLine(logging.StreamHandler[TextIO]):
    """A log handler that keeps a status line below the log."""

    _shown = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line above the status line."""
        if self._shown:
            self.stream.write(_CLEAR)
        super().emit(record)
        self._draw()

    def show(self, stage: StageProgress | None) -> None:
        """Show a stage's progress; None removes the line."""
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
    """Show a stage's progress if this process logs to a terminal."""
    for handler in logging.getLogger("flywheel").handlers:
        if isinstance(handler, StatusLine):
            handler.show(stage)


def line(stage: StageProgress, now: float) -> str:
    from flows.operations.control import position  # imports Pydantic: only while a stage runs

    return in_line(f"{progress_bar(stage, now)}  {stage.run}: {position(stage)}")


def progress_bar(stage: StageProgress, now: float) -> str:
    """A progress bar, or a moving mark if the total is unknown."""
    if stage.steps:
        return bar(min(stage.step or 0, stage.steps) / stage.steps, WIDTH)
    place = int(now) % WIDTH
    return "░" * place + "█" + "░" * (WIDTH - place - 1)
