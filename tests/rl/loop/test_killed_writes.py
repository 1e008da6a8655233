"""A run whose weights are sent, killed while a record is being written beside it: the next process goes on as if nothing was."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl.policies.policy import load_policy
from tests.rl.toy import make_policy
from warehouse.drafts import is_draft

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RUN = """
import os, signal, sys, threading
from pathlib import Path

import safetensors.torch, torch, transformers.modeling_utils
from rl.learner import local
from rl.loop import train
from rl.policies.policy import load_policy
from rl.learner.config import ReinforceConfig
from tests.rl.toy import Sampler, Scripted

policy, output, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
save, sampler = transformers.modeling_utils.safe_save_file, Sampler()

def half_a_file(weights, file, metadata=None):
    if threading.current_thread().name.startswith("weights") and f"{at:06d}" in str(file):
        whole = safetensors.torch.save(weights, metadata)
        Path(file).write_bytes(whole[: len(whole) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    save(weights, file, metadata)

transformers.modeling_utils.safe_save_file = half_a_file

class Sender:  # to a sampler in this process
    def __init__(self, weight_sync): ...

    def close(self): ...

    def send(self, weights, folder, version):
        sampler.publish(policy, version)
        sampler.model.load_state_dict({name: weight.clone() for name, weight in weights.items()}, strict=False)
        sampler.model.tie_weights()
        return True

    def record(self, folder, version):
        load_policy(folder)
        print("record", version, flush=True)

local._sender = Sender
config = ReinforceConfig(steps=5, tasks_per_step=2, samples_per_task=8, trajectories_per_pass=8, learning_rate=1e-2, save_every=2)
run = Scripted(sampler.collect, None)
train(policy, output, config, 1, run, run, weight_sync=object())
print("versions", *sampler.versions, flush=True)
"""


def run(policy: Path, output: Path, at: int = 99) -> subprocess.CompletedProcess[str]:
    """A run that dies in the middle of writing the record of version `at`."""
    command = [sys.executable, "-c", RUN, str(policy), str(output), str(at)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=500, check=False)


@pytest.mark.long
def test_a_run_that_was_killed_in_the_writing_of_a_record_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    policy = make_policy(tmp_path / "policy")
    undisturbed = run(policy, tmp_path / "undisturbed")
    assert undisturbed.stdout.splitlines() == ["record 2", "record 4", "versions 0 1 2 3 4 5"]
    for at in (2, 4):
        output = tmp_path / str(at)
        killed = run(policy, output, at)
        assert killed.returncode == -signal.SIGKILL
        assert f"record {at}" not in killed.stdout, "nobody was told of what is not there"
        folders = list((output / "weights").iterdir())
        assert [folder.name for folder in folders if is_draft(folder)] == [f"{at:06d}.part"]
        again = run(policy, output)
        told = again.stdout.splitlines()
        assert told[-1] == " ".join(["versions", *map(str, range(at, 6))]), "it goes on behind the checkpoint"
        assert told[:-1] == [f"record {version}" for version in (2, 4) if version >= at]
        assert not any(is_draft(folder) for folder in (output / "weights").iterdir())
        ours, theirs = (load_policy(folder)[0].state_dict() for folder in (output, tmp_path / "undisturbed"))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
