"""RL whose verifier and whose process reward are a model behind a server: what it said is what was trained on, and is paid for once."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from flows.context import open_context
from flows.pipeline import run_attempt
from flows.stages.reinforcement import reinforce
from rl.rollouts.rollout import Rollouts
from tests.flows.reinforcement_process import ToyRollouts
from tests.flows.test_judges import answers, server_settings
from tests.flows.toy_home import home_of
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Completion, Outcome, RewardPart

pytestmark = pytest.mark.engine

SETTINGS = ("rl.steps=2", "rl.rewards.verifier=judge", "rl.rewards.parts={turn_judge=0.5}")


def test_a_judge_grades_and_rewards_every_turn(tmp_path: Path) -> None:
    with MisbehavingServer(["500"], answer=answers) as server:
        home = home_of(tmp_path, *SETTINGS, *server_settings(server))
        with open_context(home) as context:
            context._rollouts = cast(Rollouts, ToyRollouts(-1))
            run_attempt(context.lake, "t1-rl", "rl", 1, {}, lambda run: reinforce(context, run, 1, "t1-sft"))
            lake = context.lake
            runs = {one.id: one for one in lake.trajectories("stage = 'rl'")}
            scores, parts = lake.scores(), lake.read(RewardPart, "name = 'turn_judge'")
            asked = lake.read(Completion)
    assert len(runs) == 2 * 3 * 4 and {score.verifier for score in scores} == {"judge:openai:small"}
    assert {runs[score.trajectory_id].answer for score in scores if score.verdict is Outcome.SUCCESS} == {"yes"}
    assert {part.trajectory_id for part in parts} == set(runs) and all(len(part.turns) == 2 for part in parts)
    for part in parts:
        (score,) = [one for one in scores if one.trajectory_id == part.trajectory_id]
        assert runs[part.trajectory_id].reward == pytest.approx((score.value or 0.0) + 0.5 * (part.value or 0.0))
    assert len(asked) == len({str(body["messages"]) for body in server.bodies}), "the same is not asked twice"
