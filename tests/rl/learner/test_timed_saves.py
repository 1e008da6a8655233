"""Checkpoints by a clock that the tests set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from rl.learner.config import ReinforceConfig
from rl.learner.trainers import TimedSaves
from rl.rollouts.collect import Collected
from tests.rl.toy import Sampler, Scripted, learn


@dataclass
class Clock:
    """Seconds that stand still until they are set."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


def saved(folder: Path, ends: list[float], minutes: float, every: int, writing: float = 0.0) -> list[int]:
    """The steps behind which transformers' own flow saves, of steps that end at these minutes; a checkpoint takes `writing` minutes."""
    clock = Clock()
    arguments = TrainingArguments(output_dir=str(folder), save_strategy="steps", save_steps=every, logging_strategy="no", use_cpu=True)
    state, control, found = TrainerState(max_steps=10**6, save_steps=every), TrainerControl(), list[int]()
    callbacks = [DefaultFlowCallback(), TimedSaves(minutes, clock)]
    clock.seconds = began = clock.seconds + 3600  # the trainer was made long before
    handler = CallbackHandler(callbacks, None, None, None, None)  # type: ignore[no-untyped-call]
    control = handler.on_train_begin(arguments, state, control)
    for state.global_step, minute in enumerate(ends, start=1):
        clock.seconds = began + 60 * minute
        control = handler.on_step_begin(arguments, state, control)
        control = handler.on_step_end(arguments, state, control)
        if control.should_save:
            found.append(state.global_step)
            clock.seconds += 60 * writing
            control = handler.on_save(arguments, state, control)
    return found


def test_checkpoints_are_written_by_steps_and_by_time(tmp_path: Path) -> None:
    assert saved(tmp_path, [2, 4, 6, 8, 10, 12, 14, 16], minutes=10, every=3) == [3, 6]
    assert saved(tmp_path, [2, 4, 6, 8, 10, 12, 14, 16], minutes=8, every=5) == [4, 5]


class Saves:
    """Notes the step behind which each checkpoint is written."""

    def __init__(self) -> None:
        self.step = 0
        self.saved: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        self.saved.append(self.step)
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@pytest.mark.engine
def test_the_loop_of_reinforcement_learning_saves_by_steps_by_time_and_at_the_end(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, sampler, saves = Clock(), Sampler(2), Saves()
    began, ends = clock.seconds, [4, 9, 10, 15, 19.9, 23, 30, 35, 39]

    def collect(step: int) -> Collected:
        saves.step, clock.seconds = step, began + 60 * ends[step - 1]
        return sampler.collect(step)

    monkeypatch.setattr("rl.loop.time", SimpleNamespace(monotonic=clock))
    config = ReinforceConfig(steps=9, tasks_per_step=2, samples_per_task=2, save_every=8, save_minutes=10, epochs=2)
    learn(policy, tmp_path, config, Scripted(collect, sampler.publish, state={"saves": saves}), 1)
    assert saves.saved == [3, 6, 8, 9]
