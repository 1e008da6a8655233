"""Parts of a run that remember something, kept in the trainer's checkpoints beside weights and optimiser.

The file is written before the trainer's own state, which is what tells a whole checkpoint from one that a kill left unfinished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

FILE = "flywheel_state.json"


class Stateful(Protocol):
    """Whatever a resumed run must find as it was."""

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as JSON can hold it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        ...


def save_parts(folder: Path, parts: Mapping[str, Stateful]) -> None:
    """Write the state of `parts` into the checkpoint in `folder`, which is made where it is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps({name: part.state_dict() for name, part in parts.items()}))


def load_parts(folder: Path, parts: Mapping[str, Stateful]) -> None:
    """Give `parts` the state that the checkpoint in `folder` holds of each."""
    states = json.loads((folder / FILE).read_text())
    for name, part in parts.items():
        part.load_state_dict(states[name])
