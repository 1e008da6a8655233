"""An actor that only says where it lies; in a module of its own, for its process imports nothing else."""

from __future__ import annotations

import os

import ray


class LightActor:
    """Stands where an engine or a worker would."""

    def place(self) -> tuple[str, tuple[str, ...]]:
        """Its node, and the cards that it sees."""
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return ray.get_runtime_context().get_node_id(), tuple(filter(None, seen.split(",")))
