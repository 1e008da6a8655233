"""Publishing weights: in the engines' dtype, to disk only where a folder is needed, and never a partial folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.learner import local as publishing
from rl.learner.local import WeightPublisher
from rl.policies.policy import copied, load_policy, save_policy
from tests.rl.toy import make_policy
from warehouse.drafts import is_draft

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
NAME = "model.norm.weight"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A policy of 2 layers."""
    return load_policy(make_policy(tmp_path_factory.mktemp("policy")))


class Told:
    """What engines are told. As a sender it reaches them all in versions of `reached`; what they get, they keep as it was then."""

    def __init__(self, reached: range = range(0)) -> None:
        self.reached = reached
        self.sent: dict[int, dict[str, Tensor]] = {}
        self.loaded: dict[int, dict[str, Tensor]] = {}
        self.records: list[tuple[str, int]] = []

    def send(self, weights: Mapping[str, Tensor], folder: Path, version: int) -> bool:
        if version in self.reached:
            self.sent[version] = {name: weight.clone() for name, weight in weights.items()}
        return version in self.reached

    def record(self, folder: Path, version: int) -> None:
        self.records.append((folder.name, version))
        assert (folder / "config.json").is_file()

    def load(self, folder: Path, version: int) -> None:
        self.loaded[version] = load_file(folder / "model.safetensors")


def publisher_of(policy: Loaded, output: Path, told: Told, dtype: str = "bfloat16") -> WeightPublisher:
    return WeightPublisher(output, policy[1], dtype, told if told.reached else None)  # type: ignore[arg-type]


def publish(
    publisher: WeightPublisher, told: Told, model: PreTrainedModel, weights: Mapping[str, Tensor], version: int, record: bool
) -> None:
    """Publish a version, and have the engines load the folder that they are given, if they are given one."""
    folder = publisher.publish(model, weights, version, record)
    if folder is not None:
        told.load(folder, version)


def weights_of(version: int, policy: Loaded) -> dict[str, Tensor]:
    """Weights that a float32 number tells by their version, and that bfloat16 rounds."""
    weights = copied(policy[0].state_dict())
    for weight in weights.values():
        weight.fill_(version + 1 / 3)
    return weights


def files(output: Path) -> set[tuple[str, int]]:
    """The files of all versions, each with the number of its inode: a rewritten file has another."""
    return {(str(file.relative_to(output)), file.stat().st_ino) for file in output.rglob("*") if file.is_file()}


def test_sent_weights_write_no_file_except_at_checkpoints(policy: Loaded, tmp_path: Path) -> None:
    told, written = Told(range(9)), dict[int, set[str]]()
    publisher = publisher_of(policy, tmp_path, told)
    for version in range(9):
        before = files(tmp_path)
        publish(publisher, told, policy[0], weights_of(version, policy), version, record=version in (3, 6))
        publisher._finish_record()  # else it would be there some time later
        written[version] = {name.split("/")[1] for name, _ in files(tmp_path) - before}
    publisher.close()
    assert {version: names for version, names in written.items() if names} == {3: {"000003"}, 6: {"000006"}}
    assert told.loaded == {}, "no folder is needed"
    assert told.records == [("000003", 3), ("000006", 6)]
    assert {weight.dtype for sent in told.sent.values() for weight in sent.values()} == {torch.bfloat16}
    assert load_file(tmp_path / "weights" / "000006" / "model.safetensors")[NAME][0] == torch.tensor(6 + 1 / 3).bfloat16()


def test_a_record_is_written_in_the_background_with_the_weights_of_its_step(
    policy: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, writers = threading.Event(), list[str]()

    def save_later(*arguments: object) -> None:
        writers.append(threading.current_thread().name)
        assert go_on.wait(60)
        save_policy(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(publishing, "save_policy", save_later)
    told, weights = Told(range(9)), weights_of(1, policy)
    publisher = publisher_of(policy, tmp_path, told, "float32")
    publish(publisher, told, policy[0], weights, 1, record=True)
    for weight in weights.values():  # as the optimiser does, in place
        weight.fill_(7)
    publish(publisher, told, policy[0], weights, 2, record=False)
    assert (set(told.sent), told.records) == ({1, 2}, []), "training continues, and an unfinished record is not announced"
    assert not (tmp_path / "weights" / "000001").exists()
    go_on.set()
    publisher.close()
    assert told.records == [("000001", 1)] and writers[0].startswith("weights")
    assert float(load_file(tmp_path / "weights" / "000001" / "model.safetensors")[NAME][0]) == pytest.approx(1 + 1 / 3)


def test_a_record_that_cannot_be_written_ends_the_training(policy: Loaded, tmp_path: Path) -> None:
    told = Told(range(9))
    publisher = publisher_of(policy, tmp_path, told)
    publish(publisher, told, policy[0], weights_of(0, policy), 0, record=False)
    (tmp_path / "weights").write_text("a file in the way")
    publish(publisher, told, policy[0], weights_of(1, policy), 1, record=True)
    with pytest.raises(OSError, match="weights"):
        publisher.close()
    assert told.records == []


KILLED = """
import os, signal, sys
from pathlib import Path
from transformers import PreTrainedTokenizerBase
import safetensors.torch, transformers.modeling_utils
from rl.learner.local import WeightPublisher
from rl.policies.policy import load_policy

policy, output, sends, last = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "sends", sys.argv[4]
model, tokenizer = load_policy(policy)

def half_a_file(weights, file, metadata=None):
    whole = safetensors.torch.save(weights, metadata)
    Path(file).write_bytes(whole[: len(whole) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

def no_tokenizer(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

class Sent:
    def send(self, weights, folder, version): return True
    def record(self, folder, version): print("record", version, flush=True)

publisher = WeightPublisher(output, tokenizer, "bfloat16", Sent() if sends else None)
for version in (1, 2, 3):
    if version == 3 and last == "in the weights":
        transformers.modeling_utils.safe_save_file = half_a_file
    if version == 3 and last == "before the tokenizer":
        PreTrainedTokenizerBase.save_pretrained = no_tokenizer
    if publisher.publish(model, model.state_dict(), version, record=True) is not None:
        print("load", version, flush=True)
    if version == 2:
        publisher._finish_record()
publisher.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["files", pytest.param("sends", marks=pytest.mark.long)])
@pytest.mark.parametrize("last", ["in the weights", pytest.param("before the tokenizer", marks=pytest.mark.long)])
def test_a_kill_during_a_write_leaves_complete_folders_and_drafts(policy: Loaded, tmp_path: Path, way: str, last: str) -> None:
    folder, output = make_policy(tmp_path / "policy"), tmp_path / "output"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(output), way, last], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    said = "load" if way == "files" else "record"
    assert killed.stdout.splitlines() == [f"{said} 1", f"{said} 2"], "the third is not announced"
    left = sorted((output / "weights").iterdir())
    assert [each.name for each in left] == ["000001", "000002", "000003.part"]
    assert [is_draft(each) for each in left] == [False, False, True]
    names = {file.name for file in folder.iterdir()}
    assert {file.name for file in left[0].iterdir()} == {file.name for file in left[1].iterdir()} == names
    assert {file.name for file in left[2].iterdir()} < names, "the draft is incomplete, or the kill came too late"
    with safe_open(left[1] / "model.safetensors", framework="pt") as whole:
        assert whole.get_tensor(NAME).isfinite().all()

    told = Told()
    publisher = publisher_of(policy, output, told)
    publish(publisher, told, policy[0], policy[0].state_dict(), 1, record=True)
    publisher.close()
    assert [each.name for each in (output / "weights").iterdir()] == ["000001"] and set(told.loaded) == {1}
