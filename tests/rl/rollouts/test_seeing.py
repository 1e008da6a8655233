"""A policy that sees, through the real engine: images from the tool's result to the lake, and to the learner's log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rl.learner.config import ReinforceConfig
from rl.policies.policy import load_policy
from rl.policies.vision import load_vision
from rl.renderers.base import Result, Truncation
from rl.renderers.chat import ChatDialect
from rl.renderers.registry import open_dialect
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.collect import Collected
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from rl.tools.file import load_tools
from tests.rl.policies.logprob_check import max_logprob_difference
from tests.rl.seeing import make_seeing_policy, teach, template
from tests.rl.seeing_tools import cover
from tests.rl.toy import Scripted, learn
from warehouse import Image, Lake, Outcome, Task, Trajectory

TOLERANCE = 1e-4
COUNT = 6
"""Trajectories at a time: four of five calls are what was learnt, so some look and some do not."""
CALL = '<tool_call>\n{"name": "cover", "arguments": {"title": "Emma"}}\n</tool_call>'
SHOWN = Result("", tuple(cover.function("Emma")))
TASK = Task("cover", "shelf", "Describe Emma.", ("Green",), provenance={"rollout": {"dialect": "chat"}})


def dialect_of(policy: Path) -> ChatDialect:
    opened = open_dialect("chat", {}, AutoTokenizer.from_pretrained(policy), load_vision(policy))
    assert isinstance(opened, ChatDialect)
    return opened


@pytest.fixture(scope="module")
def tools_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("shelf") / "shelf.toml"
    file.write_text('[tools.cover]\nfunction = "tests.rl.seeing_tools:cover"\n')
    return file


@pytest.fixture(scope="module")
def seeing_policy(tmp_path_factory: pytest.TempPathFactory, tools_file: Path) -> Path:
    """A policy that has learnt to look at the cover, and then to look at it again; its tokenizer knows the words of its prompt."""
    schemas = [tool.schema for tool in load_tools(tools_file).tools.values()]
    texts = [template(), CALL, *map(json.dumps, schemas)] * 5
    folder = make_seeing_policy(tmp_path_factory.mktemp("policy") / "seeing", texts, vocabulary=1200)
    dialect = dialect_of(folder)
    call = (*dialect.template.plain.ids(CALL), dialect.template.special["<|im_end|>"])
    prompt, reply = dialect.prompt_ids(TASK.question, "", schemas), dialect.reply(call, [SHOWN], Truncation(48))
    marks = [*[False] * len(prompt), *[True] * len(call), *[False] * len(reply.ids), *[True] * len(call)]
    teach(folder, [((*prompt, *call, *reply.ids, *call), marks, [placed.image for placed in reply.images])])
    return folder


@pytest.fixture(scope="module")
def rollouts(seeing_policy: Path, tools_file: Path) -> Iterator[Rollouts]:
    kinds = {"shelf": {"factory": "tools", "options": {"file": str(tools_file)}, "cpus": 0.1}}
    config = RolloutConfig.model_validate(
        {
            "limits": {"max_action_tokens": 48, "max_observation_tokens": 48, "max_context_tokens": 2000},
            "engine": {"kv_cache_gib": 0.1},
            "environments": {"kinds": kinds},
        }
    )
    with Rollouts.start(config, seeing_policy) as started:
        yield started


def look(rollouts: Rollouts, name: str) -> list[Trajectory]:
    return rollouts.rollout([RolloutRequest(f"{name}{i}", TASK, "seeing", 3, seed=i, sample=i) for i in range(COUNT)])


def blind(trajectory: Trajectory) -> Trajectory:
    """The same tokens without the images."""
    return replace(trajectory, turns=tuple(replace(turn, images=()) for turn in trajectory.turns))


@pytest.mark.engine
@pytest.mark.long
def test_what_the_tool_showed_reaches_the_engine_the_lake_and_the_learner(rollouts: Rollouts, seeing_policy: Path, tmp_path: Path) -> None:
    trajectories = look(rollouts, "first")
    assert [each.error for each in trajectories] == [None] * COUNT
    seen = [each for each in trajectories if each.images]
    assert len(seen) >= 2, "the policy has learnt to look"
    assert any(len(each.turns) == 3 and each.turns[2].action_ids for each in seen)

    vision, dialect = load_vision(seeing_policy), dialect_of(seeing_policy)
    assert vision is not None
    turn = seen[0].turns[0]
    assert (
        turn.observation
        == "\n<|im_start|>user\n<tool_response>\nFront: <image> back: <image>\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [(image.width, image.height) for image in turn.images] == [(50, 40), (20, 60)]
    reply = dialect.reply(turn.action_ids, [SHOWN], Truncation(48))
    assert (reply.ids, tuple(placed.image for placed in reply.images)) == (turn.observation_ids, turn.images)
    assert turn.observation_ids.count(vision.placeholder_id) == 4 * (5 + 3), "five tiles of one image and three of the other"

    with Lake(tmp_path / "home") as lake:
        lake.add(trajectories)
        assert {each.id: each for each in lake.trajectories()} == {each.id: each for each in trajectories}
        assert {image.digest for image in lake.read(Image)} == {image.digest for each in seen for image in each.images}
        assert len(lake.read(Image)) == 2

    model, _ = load_policy(seeing_policy)
    assert max_logprob_difference(model, trajectories, vision=vision) < TOLERANCE
    assert max_logprob_difference(model, list(map(blind, trajectories))) > 100 * TOLERANCE, "it makes a difference to see"
    with pytest.raises(ValueError, match="nothing says what the policy makes of them"):
        max_logprob_difference(model, seen)


@pytest.mark.engine
@pytest.mark.long
def test_the_policy_learns_from_what_it_saw_and_the_engine_follows(rollouts: Rollouts, seeing_policy: Path, tmp_path: Path) -> None:
    told: dict[str, float] = {}

    def collect(step: int) -> Collected:
        sampled = look(rollouts, f"step{step}-")
        assert any(each.images for each in sampled)
        return Collected(tuple(replace(each, outcome=Outcome.FAILURE, reward=float(each.sample % 2)) for each in sampled))

    config = ReinforceConfig(
        steps=1, tasks_per_step=1, samples_per_task=COUNT, trajectories_per_pass=3, learning_rate=1e-2, loss_type="grpo", beta=0.1
    )
    eyes = "model.vision_model.embeddings.patch_embedding.weight"
    before, _ = load_policy(seeing_policy)
    try:
        learn(seeing_policy, tmp_path / "rl", config, Scripted(collect, rollouts.load_weights, lambda _, found: told.update(found)), 1)
        assert told["logprob_difference"] < TOLERANCE
        model, _ = load_policy(tmp_path / "rl")
        assert (model.state_dict()[eyes] - before.state_dict()[eyes]).abs().max() > 1e-3, "what sees has learnt too"
        again = look(rollouts, "again")
        assert {turn.policy_version for each in again for turn in each.turns} == {1}
        vision = load_vision(tmp_path / "rl")
        assert max_logprob_difference(model, again, vision=vision) < TOLERANCE
        assert max_logprob_difference(before, again, vision=vision) > 100 * TOLERANCE
    finally:
        rollouts.load_weights(seeing_policy, 0)
