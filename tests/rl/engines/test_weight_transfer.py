"""Weights that a learner sends to real vLLM engines over gloo, by the steps that NCCL and CUDA IPC take too.

What engines say afterwards is held against what they say of the same weights from a folder.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
from transformers import PreTrainedModel

from rl.engines.base import Generation
from rl.engines.weight_sync import shapes_in
from rl.learner.config import LearnerConfig, ReinforceConfig
from rl.policies.policy import as_saved, load_policy
from rl.rollouts.rollout import Rollouts
from tests.rl.engines.learner_end import EngineSampler, Learner, assert_same, said, said_by_files, start, versions
from tests.rl.engines.probing import engine_processes, generate_all, prompts, worst_difference
from tests.rl.toy import Scripted, learn
from warehouse.errors import RequestError

pytestmark = pytest.mark.engine

TOLERANCE = 1e-4
REINFORCE = ReinforceConfig(steps=4, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=4, learning_rate=3e-3, save_every=2)


@pytest.fixture(scope="module")
def engines(tiny_policy: Path) -> Iterator[Rollouts]:
    """One engine to begin with."""
    with start(tiny_policy) as started:
        yield started


@pytest.fixture
def learner(engines: Rollouts) -> Iterator[Learner]:
    started = Learner(engines)
    yield started
    started.sender.close()


def test_sent_weights_are_to_an_engine_what_the_same_weights_in_a_folder_are(
    engines: Rollouts, learner: Learner, tiny_policy: Path, other_policy: Path, tmp_path: Path
) -> None:
    first = said(engines)
    engines.load_weights(other_policy, 1)
    by_files = said(engines)
    assert by_files[0].logprobs != first[0].logprobs, "the check could not tell the two policies apart"
    before = engines.figures()
    assert learner.publish(tiny_policy, tmp_path / "2", 2)
    assert_same(said(engines), first)
    assert learner.send(other_policy, tmp_path / "3", 3)
    by_transfer = said(engines)
    assert_same(by_transfer, by_files)
    assert versions(by_transfer) == {3}
    after = engines.figures()
    assert (after.transfers - before.transfers, after.updates - before.updates, after.replacements) == (2, 2, 0)


def test_requests_under_way_go_on_under_sent_weights_and_each_token_bears_its_version(
    engines: Rollouts, learner: Learner, tiny_policy: Path, other_policy: Path, tmp_path: Path
) -> None:
    learner.publish(tiny_policy, tmp_path / "0", 0)
    generations: list[Generation] = []
    for attempt, delay in enumerate((0.1, 0.3, 0.6, 1.0)):  # a machine with other work to do begins later
        learner.publish(tiny_policy, tmp_path / "0", 0)
        waiting = asyncio.run_coroutine_threadsafe(generate_all(engines.pool, prompts()), engines.event_loop)
        time.sleep(delay)
        assert learner.send(other_policy, tmp_path / f"other{attempt}", 1)
        generations = waiting.result()
        if {generation.policy_version for generation in generations} == {0} and versions(generations) == {0, 1}:
            break
    assert {generation.policy_version for generation in generations} == {0}
    assert any(set(generation.policy_versions) == {0, 1} for generation in generations)
    assert all(list(generation.policy_versions) == sorted(generation.policy_versions) for generation in generations)
    models = {0: load_policy(tiny_policy)[0], 1: load_policy(other_policy)[0]}
    assert worst_difference(models, prompts(), generations) < TOLERANCE
    swapped: dict[int, PreTrainedModel] = {0: models[1], 1: models[0]}
    assert worst_difference(swapped, prompts(), generations) > 0.1, "the check could not tell the two policies apart"


def test_weights_of_other_names_or_shapes_are_refused_before_an_engine_is_held(
    engines: Rollouts, learner: Learner, tiny_policy: Path, tmp_path: Path
) -> None:
    learner.publish(tiny_policy, tmp_path / "5", 5)
    before, model = said(engines, 2), load_policy(tiny_policy)[0]
    weights, norm = as_saved(model, model.state_dict()), "model.norm.weight"
    wrong = {
        r"model\.norm\.weight: the learner's has the shape \[3\], the engines' \[64\]": weights | {norm: torch.zeros(3)},
        r"model\.norm\.weight: the learner has no such weight": {name: weight for name, weight in weights.items() if name != norm},
        r"value_head: the engines' policy has no such weight": weights | {"value_head": torch.zeros(3)},
    }
    for sentence, given in wrong.items():
        with pytest.raises(RequestError, match=sentence):
            learner.sender.send(given, tmp_path / "6", 6)
    assert_same(said(engines, 2), before)


@pytest.mark.parametrize("last", ["start_weight_update", "update_weights", "finish_weight_update"])
def test_a_transfer_that_breaks_off_is_made_good_by_the_folder_and_the_next_is_sent_again(
    engines: Rollouts, other_policy: Path, tmp_path: Path, last: str
) -> None:
    expected = said_by_files(engines, other_policy, 6)

    def fail(step: str) -> None:
        if step == last:
            raise OSError("the learner is gone")

    gone, model = Learner(engines, fail), load_policy(other_policy)[0]
    nobodys = {name: torch.full_like(weight, torch.nan) for name, weight in as_saved(model, model.state_dict()).items()}
    assert not gone.sender.send(nobodys, tmp_path / "7", 7)
    assert_same(said_by_files(engines, other_policy, 7), expected)
    again = Learner(engines)
    assert again.publish(other_policy, tmp_path / "8", 8)
    assert_same(said(engines), expected)
    again.sender.close()


def test_weights_that_came_in_part_are_replaced_whole(engines: Rollouts, learner: Learner, other_policy: Path, tmp_path: Path) -> None:
    """vLLM takes weights in several messages, and keeps those of a layer back until the layer is whole."""
    expected = said_by_files(engines, other_policy, 6)
    model = load_policy(other_policy)[0]
    weights = {name: torch.full_like(weight, torch.nan) for name, weight in as_saved(model, model.state_dict()).items()}
    some = {name: weight for name, weight in weights.items() if "k_proj" not in name and "up_proj" not in name}
    pending = learner.sender._weight_sync.begin({name: tuple(weight.shape) for name, weight in weights.items()}, tmp_path / "7", 7)
    learner.sender._source.take(some, torch.device("cpu"))
    transfer: Any = learner.sender._join(pending)
    with patch.object(type(transfer.client), "finish_weight_update"):
        transfer.send_weights()
    assert_same(said_by_files(engines, other_policy, 7), expected)


@pytest.mark.long
def test_y_engines_that_join_or_die_in_a_transfer_have_the_current_weights_and_the_next_is_sent_to_all(
    engines: Rollouts, learner: Learner, tiny_policy: Path, other_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner.publish(other_policy, tmp_path / "9", 9)
    expected = said(engines)
    engines.add_engine()
    assert {engine.policy_version for engine in engines.figures().engines} == {9}
    assert_same(said(engines), expected)
    assert learner.publish(tiny_policy, tmp_path / "10", 10), "both were met"
    assert {engine.policy_version for engine in engines.figures().engines} == {10}
    learner.sender.close()

    def kill(step: str) -> None:
        if step == "update_weights":
            engine_processes()[0].send_signal(signal.SIGKILL)

    struck, before = Learner(engines, kill), engines.figures()
    assert not struck.publish(other_policy, tmp_path / "11", 11)
    (told,) = (record.getMessage() for record in caplog.records if "could not be sent" in record.getMessage())
    assert "took more than" not in told, "that it died is noticed, and not that it answers no longer"
    generations = said(engines)
    assert_same(generations, expected)
    assert versions(generations) == {11}
    after = engines.figures()
    assert after.replacements - before.replacements == 1
    assert len(after.engines) == 2
    deadline = time.monotonic() + 120
    while {(engine.state.value, engine.policy_version) for engine in engines.figures().engines} != {("serving", 11)}:
        assert time.monotonic() < deadline, "the replacement did not come up"
        time.sleep(0.1)
    assert learner.publish(tiny_policy, tmp_path / "12", 12)
    assert_same(said(engines), said_by_files(engines, tiny_policy, 13))


def test_z_a_run_of_reinforcement_learning_sends_each_version(engines: Rollouts, tiny_policy: Path, tmp_path: Path) -> None:
    check_run(engines, tiny_policy, tmp_path, LearnerConfig())


@pytest.mark.long
def test_z_the_main_one_of_several_workers_sends_from_its_own_process(engines: Rollouts, tiny_policy: Path, tmp_path: Path) -> None:
    check_run(engines, tiny_policy, tmp_path, LearnerConfig(workers=2, cpus=0.25))


def check_run(engines: Rollouts, policy: Path, folder: Path, learner: LearnerConfig) -> None:
    """Learn for four steps: the engines are sent all versions, no step writes one, and the checkpoint behind the second does."""
    engines.load_weights(policy, 0)
    sampler, before, differences = EngineSampler(engines, folder), engines.figures(), list[float]()

    def take(step: int, figures: dict[str, float]) -> None:
        differences.append(figures["logprob_difference"])

    config = REINFORCE.model_copy(update={"learner": learner})
    run = Scripted(sampler.collect, refuse, take, weight_sync=engines.weight_sync, sent=sampler.versions.append)
    result = learn(policy, folder, config, run, 1)
    assert sampler.versions == [0, 1, 2, 3, 4]
    assert engines.figures().transfers - before.transfers == 5
    assert max(differences) < TOLERANCE, "each step was sampled with the weights that the learner had"
    assert sampler.files[1] == sampler.files[2] == set()
    assert sampler.files[3] <= {"000002", "000002.part"}, "it is written beside the third step"
    assert {file.name for file in (folder / "weights").iterdir()} == {"000002"}
    assert engines.pool._weights == (str((folder / "weights" / "000002").resolve()), 2), "what engines begin with that start now"
    sent = said(engines)
    assert versions(sent) == {4}
    assert_same(sent, said_by_files(engines, result.path, 5))


def refuse(path: Path, version: int) -> None:
    """Stands where a folder would be loaded."""
    raise AssertionError(f"version {version} was sent, and yet is to be loaded from {path}")


@pytest.mark.slow
@pytest.mark.long
def test_an_engine_that_hangs_in_a_transfer_is_given_up_in_time_and_replaced(tiny_policy: Path, other_policy: Path, tmp_path: Path) -> None:
    hung: list[psutil.Process] = []

    def hang(step: str) -> None:
        if step == "update_weights":
            hung.extend(engine_processes())
            hung[0].suspend()

    with start(tiny_policy, transfer_timeout_seconds=6) as engines:
        learner = Learner(engines, hang)
        try:
            assert not learner.send(other_policy, tmp_path / "1", 1)  # an engine that is suspended answers never
            engines.load_weights(other_policy, 1)
            generations = said(engines, 3)
        finally:
            with suppress(psutil.NoSuchProcess):  # it went with its actor
                hung[0].kill()
        assert engines.figures().replacements == 1
    assert versions(generations) == {1}
    assert worst_difference({1: load_policy(other_policy)[0]}, prompts(3), generations) < TOLERANCE


@pytest.mark.slow
@pytest.mark.long
def test_each_worker_of_an_engine_of_two_takes_its_part(tiny_policy: Path, other_policy: Path, tmp_path: Path) -> None:
    with start(tiny_policy, tensor_parallel=2, cpus=1) as engines:
        learner = Learner(engines)
        assert learner.publish(other_policy, tmp_path / "1", 1)
        generations = said(engines, 3)
        learner.sender.close()
    assert worst_difference({1: load_policy(other_policy)[0]}, prompts(3), generations) < TOLERANCE


def test_weights_travel_together_as_far_as_a_message_holds_them() -> None:
    from rl.engines.vllm_extensions import MESSAGE_BYTES, messages

    half = MESSAGE_BYTES // 2
    assert list(messages([half, half, 1, 3 * half, half])) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert list(messages([0, 5])) == [slice(0, 2)]
    assert list(messages([])) == []


def test_a_policy_that_lacks_one_of_its_files_is_refused(tiny_policy: Path, tmp_path: Path) -> None:
    model = load_policy(tiny_policy)[0]
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert shapes_in(tmp_path) == shapes_in(tiny_policy)
    last = sorted(tmp_path.glob("*.safetensors"))[-1]
    last.unlink()
    with pytest.raises(RequestError, match=f"model.safetensors.index.json names {last.name}"):
        shapes_in(tmp_path)
