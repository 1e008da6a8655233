"""One real vLLM engine with its environments: trajectories, clients of the endpoint, new weights, engines that are killed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
from langchain_core.messages import HumanMessage
from openai import OpenAI

from rl.engines.base import EnginePressure, Generation, PressureGauge, Sampling
from rl.engines.config import EngineConfig
from rl.engines.pool import EnginePool
from rl.env_pool.circuit_breaker import CircuitBreaker, CircuitOpen
from rl.learner.config import LearnerConfig, ReinforceConfig
from rl.policies.policy import as_saved, load_policy, save_policy
from rl.ray_runtime import RayConfig, RayRuntime
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from rl.serving.server import Serving, ServingConfig, serve
from tests.rl.conftest import TASKS, create_tiny_policy
from tests.rl.engines.learner_end import EngineSampler, Learner, assert_same, said, said_by_files, start, versions
from tests.rl.engines.probing import engine_processes, generate_all, prompts, wait_until_busy, worst_difference
from tests.rl.policies.logprob_check import max_logprob_difference
from tests.rl.renderers.templates_of_trl import tokenizer_for
from tests.rl.toy import Scripted, learn
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory

pytestmark = pytest.mark.engine

TOLERANCE = 1e-4
ENGINE = {"kv_cache_gib": 0.1, "cpus": 0.25}
REINFORCE = ReinforceConfig(steps=4, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=4, learning_rate=3e-3, save_every=2)
FAULTY, HASTY = "tests.rl.faulty:create", "hasty"
"""An environment that fails as its task says, and one that is given up after a second."""
KINDS = {FAULTY: {"options": {"seconds": 30}}, HASTY: {"factory": FAULTY, "step_timeout_seconds": 1.0, "options": {"seconds": 30}}}


def create_chat_policy(folder: Path, seed: int) -> Path:
    """A small random policy with the tags, and with Qwen3's chat template for training."""
    model, tokenizer = load_policy(create_tiny_policy(folder, seed, positions=1024))
    tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, "<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    tokenizer.chat_template = tokenizer_for("qwen3_training").chat_template
    torch.manual_seed(seed)
    model.resize_token_embeddings(len(tokenizer))
    save_policy(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_chat_policy(tmp_path_factory.mktemp("policy") / "first", 0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return create_chat_policy(tmp_path_factory.mktemp("policy") / "other", 1)


@pytest.fixture(scope="module")
def started(policy: Path) -> Iterator[Rollouts]:
    """One engine for all tests; long actions, so that there is time to do something to it in their middle."""
    with start(policy, context=1000, kinds=KINDS) as engines:
        yield engines
    assert not asyncio.all_tasks(engines.event_loop), "nothing waits any longer when it is closed"


@pytest.fixture
def engines(started: Rollouts, policy: Path) -> Rollouts:
    """The engine with the first policy's weights as version 0."""
    started.load_weights(policy, 0)
    return started


@pytest.fixture
def learner(engines: Rollouts) -> Iterator[Learner]:
    made = Learner(engines)
    yield made
    made.sender.close()


@pytest.fixture(scope="module")
def serving(started: Rollouts, policy: Path) -> Iterator[Serving]:
    with serve(started, policy, "tiny", ServingConfig()) as served:
        with pytest.raises(RequestError, match="cannot listen"):
            serve(started, policy, "tiny", ServingConfig(port=int(served.url.split(":")[2].partition("/")[0])))
        yield served


@pytest.fixture
def client(serving: Serving, engines: Rollouts) -> OpenAI:
    return OpenAI(base_url=serving.url, api_key="none", max_retries=0)


def requests(count: int = 20, temperature: float = 1.0, prefix: str = "t") -> list[RolloutRequest]:
    return [
        RolloutRequest(f"{prefix}{i}", TASKS[i % len(TASKS)], "tiny", 3, seed=i, temperature=temperature, sample=i) for i in range(count)
    ]


def talk(client: OpenAI, name: str, turns: int) -> None:
    """An agent that says whatever was sampled back, with one more message."""
    messages: list = [{"role": "user", "content": f"Where is Amber Stone, {name}?"}]
    for turn in range(turns):
        answer = client.chat.completions.create(model="tiny", messages=messages, user=name, max_tokens=12, seed=turn)
        messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": f"And {turn}?"}]


def actions(trajectories: list[Trajectory]) -> list[tuple[int, ...]]:
    return [turn.action_ids for trajectory in trajectories for turn in trajectory.turns]


def faulty(question: str, environment: str = FAULTY) -> RolloutRequest:
    return RolloutRequest(f"faulty-{question}", Task(question, environment, question, ()), "tiny", 2, seed=0)


def check_valid(trajectories: Sequence[Trajectory], count: int, policy: Path, temperature: float = 1.0) -> None:
    """None is lost or invalid, and what was recorded is what the policy computes, token for token."""
    assert len({trajectory.id for trajectory in trajectories}) == count
    assert {trajectory.error for trajectory in trajectories} == {None}
    assert max_logprob_difference(load_policy(policy)[0], trajectories, temperature) < TOLERANCE


def run_on_ray(work: Any) -> Any:
    """The result of a coroutine, with a Ray of its own where none is up."""
    runtime = RayRuntime(RayConfig(), 2)
    try:
        return asyncio.run(work)
    finally:
        runtime.close()


# Trajectories


def test_trajectories_come_back_in_order_with_the_models_own_logprobs(engines: Rollouts, policy: Path) -> None:
    done: list[tuple[int, int]] = []
    trajectories = engines.rollout(requests(), on_progress=lambda count, total: done.append((count, total)))
    assert [trajectory.id for trajectory in trajectories] == [f"t{i}" for i in range(20)]
    assert done[-1] == (20, 20)
    assert all(len(turn.action_ids) == len(turn.action_logprobs) for t in trajectories for turn in t.turns)
    check_valid(trajectories, 20, policy)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logprobs_match_the_sampling_temperature(engines: Rollouts, policy: Path, temperature: float) -> None:
    check_valid(engines.rollout(requests(6, temperature)), 6, policy, temperature)


def test_a_lower_limit_on_trajectories_in_progress_changes_none_of_them(engines: Rollouts) -> None:
    free = engines.rollout(requests(8, prefix="free"))
    engines.admit(0)
    stream = engines.submit(requests(8, prefix="held"))
    time.sleep(1.0)
    assert not stream.ready and engines.figures().in_flight == 0
    engines.admit(1)
    held = [next(stream)]
    assert held[0].id == "held0" and engines.figures().in_flight <= 1
    engines.admit(None)
    held = sorted([*held, *stream], key=lambda trajectory: trajectory.id)
    assert actions(held) == actions(free)


def test_environment_faults_are_invalid_and_do_not_delay_other_trajectories(engines: Rollouts) -> None:
    trajectories = engines.rollout([faulty("raise"), faulty("hang", HASTY), faulty("none"), *requests(3)])
    broken, hung, fine, *others = trajectories
    assert (broken.stop_reason, broken.outcome, broken.error) == (StopReason.FAULT, Outcome.INVALID, "error: ValueError: the world broke")
    assert (hung.outcome, (hung.error or "").partition(":")[0], fine.error) == (Outcome.INVALID, "timeout", None)
    given_up = hung.started + timedelta(seconds=hung.seconds)
    assert [other.error for other in others] == [None] * 3
    assert max(other.started for other in others) < given_up


def test_a_dead_worker_is_replaced(engines: Rollouts) -> None:
    dead = engines.rollout([faulty("die")])[0]
    assert (dead.outcome, dead.error) == (Outcome.INVALID, "died: the environment's worker died")
    assert [loss.item for loss in engines.drain_retries()] == [{"trajectory": dead.id}], "it was restarted once"
    assert all(trajectory.error is None for trajectory in engines.rollout(requests(3)))


def test_trajectories_of_a_dead_worker_are_restarted(engines: Rollouts, tmp_path: Path) -> None:
    engines.drain_retries()
    deadly = [replace(faulty(f"die unless {tmp_path / 'died'}"), trajectory_id=f"deadly{i}") for i in range(24)]
    trajectories = engines.rollout(deadly)
    losses = engines.drain_retries()
    assert [trajectory.error for trajectory in trajectories] == [None] * 24
    assert {loss.item["trajectory"] for loss in losses} <= {request.trajectory_id for request in deadly}
    assert {(loss.stage, loss.kind, loss.reason) for loss in losses} == {("rl", "retried", "died: the environment's worker died")}
    assert engines.drain_retries() == []


def test_rollouts_stop_when_an_environment_is_down_and_name_it(engines: Rollouts) -> None:
    broken = [replace(faulty("raise"), trajectory_id=f"down{i}") for i in range(40)]
    try:
        with pytest.raises(CircuitOpen, match=r"'tests\.rl\.faulty:create' failed in \d+ of its last 32 .*world broke"):
            engines.rollout([*requests(2, prefix="other"), *broken])
    finally:
        engines.environments.breaker = CircuitBreaker(window=32, max_share=0.5)
    assert all(trajectory.error is None for trajectory in engines.rollout(requests(3, prefix="after")))


def test_a_context_that_the_policy_cannot_take_is_refused(tiny_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="max_context_tokens = 1024 is more than the 256"):
        Rollouts.start(RolloutConfig(), tiny_policy)
    with pytest.raises(RequestError, match="does not contain a policy"):
        Rollouts.start(RolloutConfig(), tmp_path)


def test_more_prompts_than_fit_into_a_pass_are_sampled(engines: Rollouts, policy: Path) -> None:
    contexts = [tuple(20 + (first * 7 + place) % 300 for place in range(230)) for first in range(40)]
    assert sum(map(len, contexts)) > engines.config.engine.max_batched_tokens
    before = [engine.name for engine in engines.figures().engines]
    generations = engines.wait(generate_all(engines.pool, contexts, 4))
    assert [engine.name for engine in engines.figures().engines] == before, "an engine died of it"
    assert worst_difference({0: load_policy(policy)[0]}, contexts, generations) < TOLERANCE


def test_a_stream_that_is_cancelled_frees_the_engine(engines: Rollouts, policy: Path) -> None:
    stream = engines.submit(requests(64, prefix="cancelled"))
    wait_until_busy(engines, 16)
    stream.cancel()
    deadline = time.monotonic() + 120
    while any(engine.in_flight or engine.trajectories for engine in engines.figures().engines):
        assert time.monotonic() < deadline, "cancelled requests are still sampled"
        time.sleep(0.01)
    check_valid(engines.rollout(requests(2, prefix="after")), 2, policy)


def test_nothing_ends_while_the_engines_are_paused_and_all_continues_afterwards(engines: Rollouts, policy: Path) -> None:
    stream = engines.submit(requests(16, prefix="paused"))
    wait_until_busy(engines)
    engines.pause()
    try:
        before = engines.figures()
        time.sleep(0.5)
        after = engines.figures()
        assert after.requests == before.requests
        assert after.in_flight >= before.in_flight > 0, "those that come meanwhile wait with the others"
        engines.load_weights(policy, 3)
        assert engines.figures().requests == before.requests, "an update of paused engines does not set them going"
    finally:
        engines.resume()
    trajectories = list(stream)
    engines.load_weights(policy, 0)
    check_valid(trajectories, 16, policy)


def test_truncated_weights_are_refused_before_an_engine_loads_them(engines: Rollouts, policy: Path, tmp_path: Path) -> None:
    for file in policy.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    with pytest.raises(RequestError, match="weight file"):
        engines.load_weights(tmp_path, 7)
    with pytest.raises(RequestError, match="does not contain a policy"):
        engines.load_weights(tmp_path / "nowhere", 7)
    check_valid(engines.rollout(requests(2, prefix="unhurt")), 2, policy)


# Clients of the endpoint


def test_concurrent_agents_become_trajectories_with_correct_logprobs(serving: Serving, client: OpenAI, policy: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: talk(client, f"agent-{number}", 3), range(4)))
    for number in range(4):
        (trajectory,) = serving.take(f"agent-{number}")
        assert [len(turn.observation_ids) > 0 for turn in trajectory.turns] == [True, True, False]
        check_valid([trajectory], 1, policy)


def test_returned_logprobs_and_ids_equal_the_recorded_ones(serving: Serving, client: OpenAI) -> None:
    given = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "?"}], max_tokens=5, logprobs=True, extra_body={"return_token_ids": True}
    )
    (trajectory,) = serving.take()
    (turn,) = trajectory.turns
    answer = given.model_dump()
    choice = answer["choices"][0]
    assert [token["logprob"] for token in choice["logprobs"]["content"]] == pytest.approx(list(turn.action_logprobs))
    assert (choice["token_ids"], answer["prompt_token_ids"]) == (list(turn.action_ids), list(trajectory.prompt_ids))
    assert answer["usage"]["completion_tokens"] == len(turn.action_ids)


def test_a_langchain_model_is_recorded_from_any_thread(serving: Serving, policy: Path) -> None:
    model = serving.chat_model(conversation="chain", max_tokens=6, seed=3)
    first = model.invoke([HumanMessage("Where?")])
    asyncio.run(model.ainvoke([HumanMessage("Where?"), first, HumanMessage("And then?")]))
    (trajectory,) = serving.take("chain")
    assert list(trajectory.turns[0].action_ids) == first.response_metadata["token_ids"]
    assert len(trajectory.turns) == 2
    check_valid([trajectory], 1, policy)


def test_a_langgraph_agent_rolls_out_while_the_endpoint_serves(engines: Rollouts, policy: Path) -> None:
    choice = {"rollout": {"loop": "langgraph", "dialect": "chat"}}
    tasks = [Task(f"c{number}", "calculator", f"What is {number} + 1?", (), provenance=choice) for number in range(4)]
    trajectories = engines.rollout([RolloutRequest(task.key, task, "tiny", 3, seed=1) for task in tasks])
    assert all(trajectory.turns for trajectory in trajectories)
    check_valid(trajectories, 4, policy)


# Weights that come while engines work


def test_sent_weights_give_the_same_samples_as_weights_from_a_folder(
    engines: Rollouts, learner: Learner, policy: Path, other: Path, tmp_path: Path
) -> None:
    first = said(engines)
    engines.load_weights(other, 1)
    by_files = said(engines)
    assert by_files[0].logprobs != first[0].logprobs, "the check could not tell the two policies apart"
    before = engines.figures()
    assert learner.publish(policy, tmp_path / "2", 2)
    assert_same(said(engines), first)
    assert learner.send(other, tmp_path / "3", 3)
    by_transfer = said(engines)
    assert_same(by_transfer, by_files)
    assert versions(by_transfer) == {3}
    after = engines.figures()
    assert (after.transfers - before.transfers, after.updates - before.updates, after.replacements) == (2, 2, 0)


def test_requests_in_progress_continue_under_sent_weights_and_each_token_has_its_version(
    engines: Rollouts, learner: Learner, policy: Path, other: Path, tmp_path: Path
) -> None:
    learner.publish(policy, tmp_path / "0", 0)
    generations: list[Generation] = []
    for attempt, delay in enumerate((0.1, 0.3, 0.6, 1.0)):  # a machine with other work to do begins later
        learner.publish(policy, tmp_path / "0", 0)
        waiting = asyncio.run_coroutine_threadsafe(generate_all(engines.pool, prompts()), engines.event_loop)
        time.sleep(delay)
        assert learner.send(other, tmp_path / f"other{attempt}", 1)
        generations = waiting.result()
        if {generation.policy_version for generation in generations} == {0} and versions(generations) == {0, 1}:
            break
    assert {generation.policy_version for generation in generations} == {0}
    assert any(set(generation.policy_versions) == {0, 1} for generation in generations)
    assert all(list(generation.policy_versions) == sorted(generation.policy_versions) for generation in generations)
    models = {0: load_policy(policy)[0], 1: load_policy(other)[0]}
    assert worst_difference(models, prompts(), generations) < TOLERANCE
    assert worst_difference({0: models[1], 1: models[0]}, prompts(), generations) > 0.1, "the check could not tell the two policies apart"


def test_weights_with_wrong_names_or_shapes_are_refused_before_engines_pause(
    engines: Rollouts, learner: Learner, policy: Path, tmp_path: Path
) -> None:
    learner.publish(policy, tmp_path / "5", 5)
    before, model = said(engines, 2), load_policy(policy)[0]
    weights, norm = as_saved(model, model.state_dict()), "model.norm.weight"
    for what, given in (
        (r"model\.norm\.weight: .* \[3\] .* \[64\]", weights | {norm: torch.zeros(3)}),
        (r"model\.norm\.weight: the learner has", {name: weight for name, weight in weights.items() if name != norm}),
        (r"value_head: the engines' policy has", weights | {"value_head": torch.zeros(3)}),
    ):
        with pytest.raises(RequestError, match=what):
            learner.sender.send(given, tmp_path / "6", 6)
    assert_same(said(engines, 2), before)


@pytest.mark.parametrize("last", ["start_weight_update", "update_weights", "finish_weight_update"])
def test_the_folder_replaces_a_broken_transfer_and_the_next_version_is_sent_again(
    engines: Rollouts, other: Path, tmp_path: Path, last: str
) -> None:
    expected = said_by_files(engines, other, 6)

    def fail(step: str) -> None:
        if step == last:
            raise OSError("the learner is gone")

    gone, model = Learner(engines, fail), load_policy(other)[0]
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in as_saved(model, model.state_dict()).items()}
    assert not gone.sender.send(broken, tmp_path / "7", 7)
    assert_same(said_by_files(engines, other, 7), expected)
    again = Learner(engines)
    assert again.publish(other, tmp_path / "8", 8)
    assert_same(said(engines), expected)
    again.sender.close()


def test_partially_received_weights_are_fully_replaced(engines: Rollouts, learner: Learner, other: Path, tmp_path: Path) -> None:
    """vLLM takes weights in several messages, and keeps those of a layer back until the layer is whole."""
    expected = said_by_files(engines, other, 6)
    model = load_policy(other)[0]
    weights = {name: torch.full_like(weight, torch.nan) for name, weight in as_saved(model, model.state_dict()).items()}
    some = {name: weight for name, weight in weights.items() if "k_proj" not in name and "up_proj" not in name}
    pending = learner.sender._weight_sync.begin({name: tuple(weight.shape) for name, weight in weights.items()}, tmp_path / "7", 7)
    learner.sender._source.take(some, torch.device("cpu"))
    transfer: Any = learner.sender._join(pending)
    with patch.object(type(transfer.client), "finish_weight_update"):
        transfer.send_weights()
    assert_same(said_by_files(engines, other, 7), expected)


def test_a_run_of_reinforcement_learning_sends_each_version(engines: Rollouts, policy: Path, tmp_path: Path) -> None:
    check_run(engines, policy, tmp_path, LearnerConfig())


@pytest.mark.long
def test_the_main_worker_of_several_sends_from_its_own_process(engines: Rollouts, policy: Path, tmp_path: Path) -> None:
    check_run(engines, policy, tmp_path, LearnerConfig(workers=2, cpus=0.25))


def check_run(engines: Rollouts, policy: Path, folder: Path, learner: LearnerConfig) -> None:
    """Learn for four steps: the engines are sent all versions, no step writes one, and the checkpoint behind the second does."""
    engines.load_weights(policy, 0)
    sampler, before, differences = EngineSampler(engines, folder), engines.figures(), list[float]()

    def take(step: int, figures: dict[str, float]) -> None:
        differences.append(figures["logprob_difference"])

    config = REINFORCE.model_copy(update={"learner": learner})

    def refuse(path: Path, version: int) -> None:
        raise AssertionError(f"version {version} was sent, and yet is to be loaded from {path}")

    run = Scripted(sampler.collect, refuse, take, weight_sync=engines.weight_sync, sent=sampler.versions.append)
    result = learn(policy, folder, config, run, 1)
    assert sampler.versions == [0, 1, 2, 3, 4]
    assert engines.figures().transfers - before.transfers == 5
    assert max(differences) < TOLERANCE, "each step was sampled with the weights that the learner had"
    assert sampler.files[1] == sampler.files[2] == set()
    assert sampler.files[3] <= {"000002", "000002.part"}, "it is written during the third step"
    assert {file.name for file in (folder / "weights").iterdir()} == {"000002"}
    assert engines.pool._weights == (str((folder / "weights" / "000002").resolve()), 2), "what engines begin with that start now"
    sent = said(engines)
    assert versions(sent) == {4}
    assert_same(sent, said_by_files(engines, result.path, 5))


@pytest.mark.long
def test_engines_that_join_or_die_during_a_transfer_get_the_current_weights(
    engines: Rollouts, learner: Learner, policy: Path, other: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner.publish(other, tmp_path / "9", 9)
    expected = said(engines)
    engines.add_engine()
    assert {engine.policy_version for engine in engines.figures().engines} == {9}
    assert_same(said(engines), expected)
    assert learner.publish(policy, tmp_path / "10", 10), "both were met"
    assert {engine.policy_version for engine in engines.figures().engines} == {10}
    learner.sender.close()

    def kill(step: str) -> None:
        if step == "update_weights":
            engine_processes()[0].send_signal(signal.SIGKILL)

    struck, before = Learner(engines, kill), engines.figures()
    assert not struck.publish(other, tmp_path / "11", 11)
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
    assert learner.publish(policy, tmp_path / "12", 12)
    assert_same(said(engines), said_by_files(engines, policy, 13))


@pytest.mark.slow
@pytest.mark.long
def test_an_engine_that_hangs_in_a_transfer_is_replaced_in_time(policy: Path, other: Path, tmp_path: Path) -> None:
    hung: list[psutil.Process] = []

    def hang(step: str) -> None:
        if step == "update_weights":
            hung.extend(engine_processes())
            hung[0].suspend()

    with start(policy, transfer_timeout_seconds=6) as engines:
        learner = Learner(engines, hang)
        try:
            assert not learner.send(other, tmp_path / "1", 1)  # an engine that is suspended answers never
            engines.load_weights(other, 1)
            generations = said(engines, 3)
        finally:
            with suppress(psutil.NoSuchProcess):  # it went with its actor
                hung[0].kill()
        assert engines.figures().replacements == 1
    assert versions(generations) == {1}
    assert worst_difference({1: load_policy(other)[0]}, prompts(3), generations) < TOLERANCE


@pytest.mark.slow
@pytest.mark.long
def test_each_worker_of_an_engine_of_two_takes_its_part(policy: Path, other: Path, tmp_path: Path) -> None:
    with start(policy, tensor_parallel=2, cpus=1) as engines:
        learner = Learner(engines)
        assert learner.publish(other, tmp_path / "1", 1)
        generations = said(engines, 3)
        learner.sender.close()
    assert worst_difference({1: load_policy(other)[0]}, prompts(3), generations) < TOLERANCE


def test_weights_are_grouped_into_messages_of_bounded_size() -> None:
    from rl.engines.vllm_extensions import MESSAGE_BYTES, messages

    half = MESSAGE_BYTES // 2
    assert list(messages([half, half, 1, 3 * half, half])) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert list(messages([0, 5])) == [slice(0, 2)]
    assert list(messages([])) == []


# Engines that come and go


def test_vllm_statistics_reach_the_gauge() -> None:
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    from rl.engines.vllm_extensions import pressure_logger

    gauge, iteration = PressureGauge(), IterationStats()
    iteration.num_preempted_reqs = 2
    logger = pressure_logger(gauge)(None, 0)
    logger.record(SchedulerStats(num_running_reqs=8, num_waiting_reqs=5, kv_cache_usage=0.25), iteration)
    logger.record(SchedulerStats(num_running_reqs=8, num_waiting_reqs=3, kv_cache_usage=0.75), None)
    logger.record(None, None)
    assert gauge.take() == EnginePressure(2, 0.75, 3, 2)


@pytest.mark.long
def test_an_engine_leaves_while_a_stream_goes_on(engines: Rollouts, policy: Path) -> None:
    added = engines.add_engine()
    retaken = engines.figures().retaken
    stream = engines.submit(requests(48, prefix="joined"))
    wait_until_busy(engines, 8)
    busy = {engine.name: engine.in_flight for engine in engines.figures().engines}
    assert busy[added] > 0
    engines.remove_engine(added)
    assert engines.figures().retaken == retaken, "what is drained is not taken up again"
    trajectories = list(stream)
    assert {engine.name for engine in engines.figures().engines} == set(busy) - {added}
    check_valid(trajectories, 48, policy)
    assert engines.figures().requests >= 48


@pytest.mark.long
def test_an_older_policy_serves_its_requests_and_is_updated_when_too_old(policy: Path, other: Path) -> None:
    config = EngineConfig.model_validate({**ENGINE, "older": 1, "older_every": 2})
    contexts = prompts(2)

    async def crossed() -> list[list[Generation]]:
        pool = await EnginePool.start(config, str(policy))
        found = []
        for version, folder in ((0, policy), (1, other), (2, policy), (0, other)):
            await pool.load_weights(str(folder), version)
            for older in (False, True):
                sampling = Sampling(max_tokens=6, seed=1, older=older)
                found.append(await asyncio.gather(*(pool.generate(f"t{n}", context, sampling) for n, context in enumerate(contexts))))
        assert len(pool.engines) == 1, "the older one takes no other requests"
        await pool.shutdown()
        return found

    found = run_on_ray(crossed())
    assert [{each.policy_version for each in pair} for pair in found] == [{0}, {0}, {1}, {0}, {2}, {2}, {0}, {0}]
    models = [load_policy(path)[0] for path in (policy, other)]
    for pair, model in zip(found, (0, 0, 1, 0, 0, 0, 1, 1), strict=True):
        assert worst_difference({each.policy_version: models[model] for each in pair}, contexts, pair) < TOLERANCE


def test_a_replacement_continues_the_requests_of_a_killed_engine(engines: Rollouts, policy: Path) -> None:
    before = engines.figures()
    engines.load_weights(policy, 9)
    stream = engines.submit(requests(8, prefix="killed"))
    wait_until_busy(engines, 4)
    for process in engine_processes():
        process.send_signal(signal.SIGKILL)
    trajectories = list(stream)
    check_valid(trajectories, 8, policy)
    assert {turn.policy_version for trajectory in trajectories for turn in trajectory.turns} == {9}
    after = engines.figures()
    assert after.retaken - before.retaken >= 4
    assert after.replacements - before.replacements == 1


def test_without_replacements_the_trajectories_are_invalid_and_say_why(policy: Path, engines: Rollouts) -> None:
    """Last of the module: it leaves the pool without engines."""
    engines.pool._config = EngineConfig.model_validate({**ENGINE, "max_replacements": 0})
    for process in engine_processes():
        process.send_signal(signal.SIGKILL)
    dead = engines.rollout(requests(3, prefix="dead"))
    assert {trajectory.outcome.value for trajectory in dead if trajectory.outcome} == {"invalid"}
    assert all("replacements are used up" in (trajectory.error or "") for trajectory in dead)
