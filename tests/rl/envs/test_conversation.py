"""Simulated users: what they say is checked, and a slip of theirs is a fault; a conversation ends where they end it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from eval.graders.state import StateVerifier
from rl.envs.base import EnvironmentFault, FaultKind, Resources
from rl.envs.tool_world.conversation import RESPOND, STOP, Said, UserOptions, slip_in
from rl.envs.tool_world.environment import ToolWorldEnvironment, ToolWorldOptions, create
from rl.renderers.base import Action
from tests.rl.envs.test_tool_world import WORLD, task_of
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory

GOAL = "You are member M2 and want the book Dune, which is B1."
NAMES = frozenset({"B1", "B2", "Dune", "Emma", "M1@B1"})


@pytest.mark.parametrize(
    ("text", "slip"),
    [
        ("I would like to borrow Dune, please.", None),
        ("Thank you, that is all. " + STOP, None),
        ("I simply want a book; I'm sorry, I cannot find my card.", None),
        ("", "says nothing"),
        ("x" * 2_001, "says more than"),
        ("As an AI language model, I have no library card.", "simulated"),
        ("I am simulating a user who wants a book.", "simulated"),
        ("I'm sorry, but I can't assist with that.", "refuses"),
        ("No, it is Emma that I want.", "names 'Emma'"),
    ],
)
def test_slips_are_seen_and_what_people_say_is_none(text: str, slip: str | None) -> None:
    found = slip_in(text, [GOAL], NAMES)
    assert (found is None) if slip is None else slip in str(found)


class Scripted:
    """Says what stands in a script, line by line; an exception there is raised."""

    def __init__(self, *lines: str | Exception) -> None:
        self.lines = list(lines)
        self.heard: list[tuple[str, tuple[Said, ...], int]] = []

    async def say(self, goal: str, said: Sequence[Said], seed: int) -> str:
        self.heard.append((goal, tuple(said), seed))
        line = self.lines[len(self.heard) - 1]
        if isinstance(line, Exception):
            raise line
        return line


def user_task() -> Task:
    return task_of(user={"goal": GOAL})


def environment_of(user: Scripted, most_messages: int = 30) -> ToolWorldEnvironment:
    options = ToolWorldOptions(user=UserOptions(factory="scripted", most_messages=most_messages))
    return ToolWorldEnvironment(options, lambda: user)


def say(message: str) -> Action:
    return Action(RESPOND, json.dumps({"message": message}))


async def test_the_user_opens_answers_and_ends_and_the_state_is_judged() -> None:
    user = Scripted("Hello, I want a book.", "Dune, it is B1. I am M2.", f"Thanks! {STOP}")
    environment = environment_of(user)
    first = await environment.reset(user_task(), seed=7)
    assert first.text == "Hello, I want a book."
    assert {tool["function"]["name"] for tool in first.tools} == {*WORLD["tools"], RESPOND}
    assert (await environment.step(say("Which one?"))).observation == "Dune, it is B1. I am M2."
    assert not (await environment.step(Action("lend", '{"book": "B1", "member": "M2"}'))).done
    last = await environment.step(say("It is yours."))
    assert (last.observation, last.done, last.reward) == ("Thanks!", True, 1.0)
    assert [len(said) for _, said, _ in user.heard] == [0, 2, 4] and {goal for goal, _, _ in user.heard} == {GOAL}
    assert {seed for _, _, seed in user.heard} == {7}


@pytest.mark.parametrize("line", ["As an AI, I have no books.", "", "It is Emma.", EnvironmentFault("not there", FaultKind.UNREACHABLE)])
async def test_a_slip_makes_the_trajectory_invalid_whenever_it_comes(line: str | Exception) -> None:
    kind = FaultKind.UNREACHABLE if isinstance(line, Exception) else FaultKind.USER
    with pytest.raises(EnvironmentFault) as at_once:
        await environment_of(Scripted(line)).reset(user_task(), seed=0)
    environment = environment_of(Scripted("Hello.", line))
    await environment.reset(user_task(), seed=0)
    with pytest.raises(EnvironmentFault) as later:
        await environment.step(say("Yes?"))
    assert at_once.value.kind is later.value.kind is kind and str(later.value).startswith(f"{kind.value}: ")
    run = Trajectory("t", "t", "p", "rl", 1, (), (), StopReason.FAULT, Outcome.INVALID, None, 0, None, None, error=str(later.value))
    assert StateVerifier().verify(user_task(), run).verdict is Outcome.INVALID


@pytest.mark.parametrize("user", [{}, {"goal": ""}, "M2", {"goal": "x", "factory": "os:system"}])
async def test_a_task_whose_user_has_no_goal_is_a_fault(user: Any) -> None:
    with pytest.raises(EnvironmentFault, match="has no goal"):
        await environment_of(Scripted("Hello.")).reset(task_of(user=user), seed=0)


async def test_a_user_whom_nobody_plays_is_refused_and_data_never_says_who_does() -> None:
    with pytest.raises(RequestError, match=r"rollout\.environments\.kinds\.tool_world\.options\.user\.factory"):
        await create(Resources()).reset(user_task(), seed=0)
    with pytest.raises(RequestError, match="there is no simulated user 'nobody'"):
        create(Resources(options={"user": {"factory": "nobody"}}))
