"""Which parts of a configuration are up at once, and that what finds no room is refused in one sentence before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.config import load_config
from flows.placement import check_placement, phases
from warehouse.errors import RequestError

SMALL = str(Path(__file__).parent.parent / "end_to_end" / "small.toml")
FOUR_AND_FOUR = ("rollout.engine.count=4", "rollout.engine.gpus=1", "rl.learner.workers=4", "rl.learner.gpus=1")


def refusal(overrides: Sequence[str]) -> str:
    with pytest.raises(RequestError) as refused:
        check_placement(load_config(SMALL, overrides))
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def test_engines_stay_beside_the_learner_of_every_stage() -> None:
    config = load_config(SMALL, [*FOUR_AND_FOUR, "sft.learner.workers=2"])
    found = {phase.name: {each.key: len(each.bundles) for each in phase.reservations} for phase in phases(config)}
    rollouts = {"rollout.engine": 4, "rollout.environments": 1}
    assert found == {
        "evaluation": rollouts,
        "the stage sft": {**rollouts, "sft.learner": 2},
        "the stage rl": {**rollouts, "rl.learner": 4},
    }


# With Ray's own eyes


@pytest.mark.slow
def test_what_finds_no_room_is_refused_by_its_key_and_by_a_dry_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_placement(load_config(SMALL, [*FOUR_AND_FOUR, "rollout.ray.gpus=8"]))
    said = refusal([*FOUR_AND_FOUR, "rollout.ray.gpus=7"])
    assert said.startswith("rl.learner: 1 GPU and 0.5 CPU finds no room in the stage rl: ") and "alongside rollout.engine (4 times" in said
    assert "this machine with 7 GPUs; lower rl.learner.workers, .gpus or .cpus" in said
    assert refusal(["rollout.engine.gpus=2", "rollout.engine.tensor_parallel=2", "rollout.ray.gpus=1"]).startswith("rollout.engine: 2 GPUs")
    arguments = ["run", "--profile", SMALL, "--home", str(tmp_path / "home"), "--dry-run"]
    for override in (*FOUR_AND_FOUR, "rollout.ray.gpus=7"):
        arguments += ["--set", override]
    assert isinstance(CliRunner().invoke(app, arguments).exception, RequestError)
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_the_gpus_are_those_that_cuda_visible_devices_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert "rollout.ray.gpus = 8 is more than the 3 that CUDA_VISIBLE_DEVICES names" in refusal([*FOUR_AND_FOUR, "rollout.ray.gpus=8"])
    monkeypatch.setattr("ray._private.accelerators.nvidia_gpu.NvidiaGPUAcceleratorManager.get_current_node_num_accelerators", lambda: 8)
    assert "this machine with 3 GPUs" in refusal(FOUR_AND_FOUR)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    check_placement(load_config(SMALL, FOUR_AND_FOUR))
