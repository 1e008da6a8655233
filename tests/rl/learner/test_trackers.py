"""Trackers keep their files in the home and stay offline by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from rl.learner.config import Tracker
from rl.learner.metrics import tracked
from rl.renderers.examples import EncodedExample
from rl.supervised.config import SftConfig
from rl.supervised.training import train_sft

pytestmark = pytest.mark.engine

TRACKERS: tuple[Tracker, ...] = get_args(Tracker)
VARIABLES: dict[Tracker, dict[str, str]] = {
    "trackio": {"TRACKIO_DIR": "{folder}"},
    "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": "{folder}", "WANDB_SILENT": "true"},
    "tensorboard": {"TENSORBOARD_LOGGING_DIR": "{folder}"},
    "mlflow": {"MLFLOW_TRACKING_URI": "sqlite:///{folder}/mlflow.db"},
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in VARIABLES.values():
        for name in variables:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The folder of a policy in a home."""
    return tmp_path / "policies" / "t1-sft"


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_keeps_its_files_in_the_home_and_sends_nothing(output: Path, tracker: Tracker) -> None:
    folder = output.parents[1] / "trackers" / "t1-sft" / tracker
    before = dict(os.environ)
    with tracked((tracker,), output):
        added = {name: value for name, value in os.environ.items() if before.get(name) != value}
        assert folder.is_dir()
    assert added == {name: value.format(folder=folder) for name, value in VARIABLES[tracker].items()}


def test_a_training_leaves_its_figures_in_the_home(policy: Path, output: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: `pip install tensorboard`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = SftConfig(trackers=("tensorboard",), row_tokens=16, rows_per_step=1, rows_per_pass=1, log_every=1, warmup_steps=0)
    figures: dict[int, dict[str, float]] = {}
    examples = [EncodedExample(tuple(range(30, 46)), (True,) * 16)] * 2
    train_sft(policy, examples, output, config, 1, lambda step, new: figures.update({step: new}))
    (event,) = (output.parents[1] / "trackers" / "t1-sft" / "tensorboard").iterdir()
    events = EventAccumulator(str(event)).Reload()
    losses = {each.step: each.value for each in events.Scalars("train/loss")}
    assert losses == {step: pytest.approx(figures[step]["loss"]) for step in (1, 2)}
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
