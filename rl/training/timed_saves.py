"""Checkpoints by time: what a kill can cost is then minutes, however long a step takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class TimedSaves(TrainerCallback):
    """Asks for a checkpoint behind the first step that ends so many minutes after the last one, or after the start."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._seconds = 60 * minutes
        self._clock = clock
        self._last = clock()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The time begins."""
        self._last = self._clock()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """All workers go by the main one's clock, for all of them write a checkpoint together."""
        if broadcast_object_list([self._clock() - self._last >= self._seconds])[0]:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The time begins anew, whatever the checkpoint was written for."""
        self._last = self._clock()
