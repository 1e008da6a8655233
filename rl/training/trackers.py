"""Experiment trackers that a training stage reports its figures to besides the lake, by the integrations of transformers.

Nothing leaves the machine unless the user says so: each tracker is given a folder of the home, `trackers/POLICY/TRACKER`, by the
environment variables that it reads, and one that is set already is left as it is.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl.training.optimizer_config import Tracker
from warehouse.errors import RequestError

FOLDER = "trackers"


@contextmanager
def tracked(trackers: Sequence[Tracker], output: Path) -> Iterator[None]:
    """Have the trackers of what is trained within keep their files beside the policy in folder `output`."""
    own: dict[str, str] = {}
    for tracker in trackers:
        folder = output.resolve().parent.parent / FOLDER / output.name / tracker
        folder.mkdir(parents=True, exist_ok=True)
        own |= {name: value for name, value in _offline(tracker, folder).items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


@contextmanager
def tracking(trackers: Sequence[Tracker], output: Path) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """A function that gives the metrics of a step to the trackers of the policy in folder `output`, by accelerate's trackers."""
    with tracked(trackers, output):
        opened = [_opened(tracker, output.name) for tracker in trackers]

        def track(step: int, figures: Mapping[str, float]) -> None:
            for tracker in opened:
                tracker.log({f"train/{name}": value for name, value in figures.items()}, step=step)

        try:
            yield track
        finally:
            for tracker in opened:
                tracker.finish()


def _opened(tracker: Tracker, name: str) -> Any:
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # accelerate's trackers ask it for the main process
    kind = LOGGER_TYPE_TO_CLASS[tracker]
    opened: Any = kind(name, os.environ["TENSORBOARD_LOGGING_DIR"]) if kind.requires_logging_directory else kind(name)
    opened.start()
    return opened


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Raises `RequestError` where a tracker's package is not installed."""
    for tracker in trackers:
        if importlib.util.find_spec(tracker) is None:
            raise RequestError(f"trackers names {tracker}, and that package is not installed: `pip install {tracker}`, or leave it out.")


def _offline(tracker: Tracker, folder: Path) -> Mapping[str, str]:
    """The environment variables that keep a tracker on this machine, and its files in `folder`."""
    match tracker:
        case "trackio":
            return {"TRACKIO_DIR": str(folder)}
        case "wandb":
            return {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
        case "tensorboard":
            return {"TENSORBOARD_LOGGING_DIR": str(folder)}
        case "mlflow":
            return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
