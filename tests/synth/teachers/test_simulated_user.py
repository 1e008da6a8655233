"""A teacher behind a real server plays the user of a tool world: a conversation of five turns, and each way in which it may slip."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eval.graders.choice import verifiers_of
from rl.engines.base import Generation, GenerationStop, Sampling
from rl.envs.base import Resources
from rl.envs.tool_world.conversation import RESPOND, STOP
from rl.envs.tool_world.environment import create
from rl.rewards.reward import reward_trajectories
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits
from synth.teachers.play import GuardedEnvironment, TextDialect
from tests.rl.envs.test_tool_world import task_of
from tests.synth.scripted import calling
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse.records import Outcome, StopReason, Trajectory

FACTORY = "synth.teachers.simulated_user:create"
GOAL = "You are Mia, of member number M2, and want the book Dune. Its number is B1."
TASK = task_of(user={"goal": GOAL})
ANSWERS = {
    "Hello. What can I do for you?": "Good day, I would like to borrow a book.",
    "Which book?": "It is called Dune.",
    "Who are you?": "Mia.",
    "And your number?": "My number is M2.",
    "Do you know the number of the book?": "Yes, B1.",
    "It is lent to you.": f"Thank you very much! {STOP}",
}


def mia(body: dict[str, Any]) -> str:
    """Plays by the last thing that was said to her; her goal stands in the system's message alone."""
    assert GOAL in body["messages"][0]["content"] and body["messages"][0]["role"] == "system"
    assert [message["role"] for message in body["messages"][1:]] == ["user", "assistant"] * (len(body["messages"]) // 2 - 1) + ["user"]
    return ANSWERS[body["messages"][-1]["content"]]


def options(server: MisbehavingServer, **changed: Any) -> dict[str, Any]:
    teacher = {"kind": "openai", "model": "m", "base_url": server.url, "attempts": 2, "first_pause_seconds": 0.01, "timeout_seconds": 5}
    return {"user": {"factory": FACTORY, "options": {**teacher, **changed}}}


ACTIONS = [
    *(calling(RESPOND, message=said) for said in list(ANSWERS)[1:5]),
    calling("lend", book="B1", member="M2"),
    calling(RESPOND, message="It is lent to you."),
]


class Script:
    """An engine that writes one line after the other."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = iter(lines)

    async def generate(self, request_id: str, prompt_ids: Any, sampling: Sampling, images: Any = ()) -> Generation:
        ids = tuple(map(ord, next(self._lines)))
        return Generation(ids, (0.0,) * len(ids), GenerationStop.STOP, (0,) * len(ids))


def run(server: MisbehavingServer, lines: list[str], **changed: Any) -> Trajectory:
    """A trajectory in the agent loop as rollouts run it."""

    async def play() -> Trajectory:
        environment = GuardedEnvironment(create(Resources(options=options(server, **changed), trajectory_id="t")))
        request = RolloutRequest("t", TASK, "scripted", 10, 3)
        loop = AgentLoop(Script(lines), TextDialect(), Limits(max_context_tokens=9_000, max_action_tokens=200))
        return await loop.run(request, environment)

    played = asyncio.run(play())
    return reward_trajectories([TASK], [played], verifiers_of("state")).trajectories[0]


def test_a_conversation_of_five_turns_ends_where_the_user_ends_it_and_the_state_is_judged() -> None:
    with MisbehavingServer(answer=mia) as server:
        played = run(server, ACTIONS)
    said = [turn.observation for turn in played.turns if turn.tool == RESPOND]
    assert len([turn for turn in played.turns if turn.tool == RESPOND]) == 5 and said[:4] == list(ANSWERS.values())[1:5]
    assert played.turns[-1].calls[0].observation == "Thank you very much!"
    assert played.stop_reason is StopReason.ANSWERED and played.outcome is Outcome.SUCCESS, played.error
    assert GOAL not in "".join(map(chr, played.prompt_ids)) and "borrow a book" in "".join(map(chr, played.prompt_ids))
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies) == 6, "each turn is drawn anew"


@pytest.mark.parametrize(
    ("script", "answer", "kind"),
    [
        (["well", "empty"], None, "user"),
        (["well", "500", "500"], None, "unreachable"),
        ([], "As a language model, I cannot borrow books.", "user"),
        ([], STOP, "user"),
    ],
)
def test_every_fault_of_the_user_makes_the_trajectory_invalid_and_never_failed(script: list[str], answer: str | None, kind: str) -> None:
    with MisbehavingServer(script, answer=mia if answer is None else lambda body: str(answer)) as server:
        played = run(server, ACTIONS)
    assert (played.stop_reason, played.outcome) == (StopReason.FAULT, Outcome.INVALID)
    assert str(played.error).startswith(f"{kind}: ") and played.reward is None


def test_the_limit_of_tokens_holds_and_the_run_is_invalid() -> None:
    with MisbehavingServer(answer=mia) as server:
        played = run(server, ACTIONS, max_tokens=2_000)
    assert played.outcome is Outcome.INVALID and "budget" in str(played.error)
