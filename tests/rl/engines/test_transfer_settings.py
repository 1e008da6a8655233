"""Transfers of weights that a configuration cannot have are refused by it alone, before anything starts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flows.config import load_config
from rl.engines.config import EngineConfig
from warehouse.errors import RequestError


def test_a_way_that_this_machine_cannot_go_is_refused_before_anything_starts() -> None:
    for changes, sentence in (
        ({"transfer": "nccl"}, "engine.transfer = nccl needs engines on GPUs"),
        ({"transfer": "nccl", "gpus": 1, "tensor_parallel": 2}, "make them equal"),
        ({"transfer": "ipc"}, "engine.transfer = ipc needs engines on GPUs"),
        ({"transfer": "ipc", "gpus": 0.5, "count": 2}, "engine.transfer = ipc is for one engine of one worker"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            EngineConfig.model_validate(changes)
    on_gpus = ["rollout.engine.gpus=1", "rl.learner.workers=2"]
    with pytest.raises(RequestError, match=r"rollout.engine.transfer = nccl needs rl.learner.gpus"):
        load_config("quickstart", [*on_gpus, "rollout.engine.transfer=nccl"])
    with pytest.raises(RequestError, match=r"rollout.engine.transfer = ipc is for a learner of one process"):
        load_config("quickstart", [*on_gpus, "rollout.engine.transfer=ipc", "rl.learner.gpus=1"])
    load_config("quickstart", ["rollout.engine.transfer=gloo", "rl.learner.workers=2"])
