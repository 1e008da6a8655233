"""The model that is to be trained attempts questions without tools, on its own engines, before anything is trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.stage import synthesise
from tests.chat_models import create_chat_model
from warehouse import Lake

CHAT = Path(__file__).parent.parent / "end_to_end" / "chat.toml"


@pytest.mark.long
@pytest.mark.engine
def test_the_model_that_is_to_be_trained_attempts_what_it_would_be_trained_on(tmp_path: Path) -> None:
    settings = [
        f"policy.path={create_chat_model(tmp_path / 'model')}",
        "synth.direct_attempts.by=policy",
        "synth.direct_attempts.attempts=2",
        "synth.direct_attempts.max_tokens=8",
        "synth.webshaper.counts={1=6}",
        "rollout.engine.dtype=float32",
        "rollout.engine.kv_cache_gib=0.2",
        "rollout.environments.workers=1",
        "rollout.ray.object_store_gib=0.1",
    ]
    found = []
    for name in ("one", "other"):
        with Lake(tmp_path / name) as lake:
            context = RunContext(Home(tmp_path / name), load_config(str(CHAT), settings), lake)
            work = partial(synthesise, context, turn=1, kind="webshaper")
            try:
                run_attempt(lake, "t1-synth-webshaper", "synth", 1, {}, work)
            finally:
                context.stop_engines()
            tasks, faults = lake.tasks(split="train"), lake.failures("synth")
            assert lake.trajectories() == [], "an attempt without tools is no rollout, and no pass rate knows of it"
            found.append([(task.key, task.provenance) for task in tasks])
    assert len(tasks) == 6 and not [failure for failure in faults if failure.kind == "direct_engine_fault"]
    assert {tuple(task.provenance["direct_attempts"].items()) for task in tasks} == {(("by", "model"), ("attempts", 2), ("answered", 0))}
    assert found[0] == found[1]
