"""The progress record of the process at work in a home: one small file, written anew each second, which `flywheel top` reads.

The lake has what is done; this has what is under way: the step, the trajectories that have not ended, engines, environments and tools.
Nothing rests on it. A run that ends takes the file away, a killed one leaves it behind, and its age shows that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flows.operations.control import ControlState
from rl.engines.base import PoolFigures
from rl.env_pool.circuit_breaker import EnvironmentPoolFigures

EVERY_SECONDS = 1.0
STALE_SECONDS = 15.0
"""A record older than this is of a process that was killed or hangs."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The stage at work: its run, and how far it is.

    `step` of `steps` are optimiser steps, or trajectories in evaluation and sampling; None where they are not known. `first_step` is the
    first one that this process recorded and `began` when it did, in seconds since 1970, so that the rate is its own.
    """

    run: str
    stage: str
    wheel_turn: int
    began: float
    first_step: int = 0
    step: int | None = None
    steps: int | None = None
    resumed: bool = False
    """Whether the stage was begun before, by a process that stopped."""
    figures: dict[str, float] = field(default_factory=dict)


def position(stage: StageProgress) -> str:
    """How far a stage is, in words; before its first step has ended, that this is running, as long as engines take to start too."""
    unit = "trajectory" if stage.stage in ("eval", "rollout") else "step"
    of = f" of {stage.steps:,}" if stage.steps else ""
    if stage.step is not None:
        return f"{unit} {stage.step:,}{of}"
    if stage.resumed:
        return "goes on"
    return f"{unit} 1{of} running" if stage.stage in ("cpt", "sft", "rl", "eval", "rollout") else "running"


@dataclass(frozen=True, slots=True)
class Progress:
    """One record: who wrote it and when, in seconds since 1970, what is at work, how many turns the wheel is to make, what it was asked."""

    process: int
    written: float
    turns: int | None = None
    stage: StageProgress | None = None
    engines: PoolFigures | None = None
    tokens_per_second: float = 0.0
    environment_figures: EnvironmentPoolFigures | None = None
    control: ControlState = field(default_factory=ControlState)

    def is_stale(self, now: float) -> bool:
        """Whether its writer must have been killed, or hangs."""
        return now - self.written > STALE_SECONDS


_ADAPTER: TypeAdapter[Progress] = TypeAdapter(Progress)


def read_progress(file: Path) -> Progress | None:
    """The record in `file`; None where there is none, or one of another version of this program."""
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class ProgressWriter:
    """Writes what `look` sees each second, in a thread of its own, until it is closed; `show` is told the stage, and None at the end."""

    def __init__(self, file: Path, look: Callable[[], Progress], show: Callable[[StageProgress | None], None] = lambda stage: None) -> None:
        self._file = file
        self._look = look
        self._show = show
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and take the file away."""
        self._ended.set()
        self._thread.join()
        self._show(None)
        self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        draft = self._file.with_suffix(".draft")
        while not self._ended.wait(EVERY_SECONDS):
            try:
                seen = self._look()
                self._show(seen.stage)
                draft.write_bytes(_ADAPTER.dump_json(seen))
                draft.replace(self._file)  # a reader sees the old record or the new one
            except (OSError, RuntimeError):  # a full disk, or a set that grew while it was counted: the next second may do better
                continue
