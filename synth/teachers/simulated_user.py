"""A teacher plays the users of tool worlds; the options are those of a teacher:

    [rollout.environments.kinds.tool_world.options.user]
    factory = "synth.teachers.simulated_user:create"
    options = { kind = "openai", model = "Qwen/Qwen3-8B", base_url = "http://localhost:8000/v1" }

The teacher sees the goal and the conversation, with itself as the assistant. All trajectories of an environment worker share one teacher,
so `concurrency` and budgets hold per worker. Its messages are stored only in the trajectory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from pydantic import Field, PositiveInt

from rl.envs.base import EnvironmentFault, FaultKind
from rl.envs.tool_world.conversation import STOP, Said
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.teachers.teacher import Fault, Teacher, ask
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Failure, Message, Request
from warehouse.replies import split_reasoning
from warehouse.settings import read_options

GREETING = "Hello. What can I do for you?"
"""First message the simulated user sees; the policy does not see it."""
SYSTEM = """You play a person who talks to a service. You want what the goal below says, and you know nothing but what it says and \
what the service tells you. Say one or two short sentences at a time, in your own words, as such a person would. Do not say all at \
once; give details when you are asked for them, and make none up. Never say that you play somebody, or that there is a goal. When the \
service has done what you want, or clearly will not, reply with {stop} alone.

Goal: {goal}"""
_OF_USER = frozenset({Fault.EMPTY, Fault.CUT})
"""Faults of the message; all others are server faults."""


class SimulatedUserConfig(TeacherConfig):
    """Teacher that plays users."""

    max_message_tokens: PositiveInt = 200
    temperature: float = Field(default=0.7, ge=0, le=2)
    greeting: str = GREETING


class TeacherUser:
    def __init__(self, teacher: Teacher, config: SimulatedUserConfig, held: ExitStack | None = None) -> None:
        """`held` keeps the teacher open."""
        self._teacher, self._config, self._held = teacher, config, held
        self._threads = ThreadPoolExecutor(config.places, "simulated user")

    async def say(self, goal: str, said: Sequence[Said], seed: int) -> str:
        """Next message of the user. Raises EnvironmentFault if the server did not reply, or the message is empty or truncated."""
        spoken = [Message("assistant" if who == "user" else "user", text) for who, text in said]
        system = Message("system", SYSTEM.format(goal=goal, stop=STOP))
        messages = (system, Message("user", self._config.greeting), *spoken)
        request = Request(messages, self._config.max_message_tokens, self._config.temperature, seed_from("user", seed, len(said)))
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, ask, self._teacher, request)
        if isinstance(reply, Failure):
            kind = FaultKind.USER if reply.kind in _OF_USER else FaultKind.UNREACHABLE
            raise EnvironmentFault(f"the simulated user has nothing to say: {reply.kind}: {reply.reason}", kind)
        return split_reasoning(reply.text)[1]


def create(options: Mapping[str, Any]) -> TeacherUser:
    """Create the simulated user of one worker; its teacher lives as long as the process.

    Raises:
        RequestError: an option is invalid, or the teacher is not a server.
    """
    config = read_options(SimulatedUserConfig, options, "rollout.environments.kinds.tool_world.options.user.options")
    if config.kind != "openai":
        raise RequestError(
            "rollout.environments.kinds.tool_world.options.user.options.kind must be openai: no engine or oracle can play users."
        )
    held = ExitStack()
    return TeacherUser(held.enter_context(open_teacher(config)), config, held)
