"""Simulated user: a model that plays a person with a hidden goal, with whom the policy talks (tau-bench, arXiv 2406.12045).

The policy speaks through the tool `respond`, which returns the user's reply. The user ends the conversation, and with it the trajectory,
with a stop mark; the world's state at that point is graded. `slip_in` checks the user's messages: for example, the user cannot know a name
from the world's rows that occurs neither in the goal nor in the policy's messages. A slip or a failing server makes the trajectory invalid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import Field, PositiveInt

from rl.envs.base import EnvironmentFault, FaultKind
from rl.tools import ToolError
from warehouse.plugins import Registry
from warehouse.settings import Section

USER = "user"
"""Key of the user's goal in a task's provenance."""
RESPOND = "respond"
"""Name of the tool that talks to the user."""
STOP = "###STOP###"
"""Ends the conversation, successful or not."""
LONGEST_MESSAGE = 2_000
"""Maximum characters of a message."""

SIMULATED_USERS = Registry(
    "simulated user",
    {},
    "agent_flywheel.simulated_users",
    "rollout.environments.kinds.tool_world.options.user",
    arguments=("options",),
)

_SHOWS = re.compile(
    r"\bas an ai\b|\blanguage model\b|\b(?:simulated|simulat(?:e|ing)|pretend(?:ing)?) (?:a|the|to be|user)|\buser simulator\b"
    r"|\bsystem prompt\b|\bmy (?:instructions|hidden goal)\b|\brole-?play",
    re.IGNORECASE,
)
_REFUSES = re.compile(
    r"\b(?:i(?:'m| am) sorry,? but )?i (?:can(?:'t|not)|am (?:not able|unable) to|won't) (?:help|assist|comply|do that|continue|fulfil)",
    re.IGNORECASE,
)

Said = tuple[str, str]
"""Speaker (`user` or `policy`) and message."""


class UserGoal(Section):
    """User of a task, from its provenance."""

    goal: str = Field(min_length=1, max_length=4_000)
    """What the user wants; hidden from the policy."""


class SimulatedUser(Protocol):
    """Plays the users of all trajectories of a worker."""

    async def say(self, goal: str, said: Sequence[Said], seed: int) -> str:
        """Return the next message of a user with this goal. Any exception is a fault."""
        ...


SimulatedUserFactory = Callable[[Mapping[str, Any]], SimulatedUser]
"""Creates a simulated user from its options."""


class UserOptions(Section):
    """Simulated user, for tasks that have one."""

    factory: str
    """Factory: an entry point of `agent_flywheel.simulated_users`, `module:factory` or `file.py:factory`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the factory."""
    most_messages: PositiveInt = 30
    """Maximum messages of the user; the last one ends the conversation."""


class Conversation:
    """Conversation of one trajectory."""

    def __init__(self, user: SimulatedUser, goal: str, names: frozenset[str], seed: int, most_messages: int) -> None:
        """`names` are names in the world's rows, which the user may know only from the goal or the policy."""
        self._user, self._goal, self._names, self._seed, self._most = user, goal, names, seed, most_messages
        self.said: list[Said] = []
        self.over = False

    async def open(self) -> str:
        """Return the user's first message. Raises EnvironmentFault for a slip."""
        return await self._next()

    async def respond(self, message: str) -> str:
        """Say something to the user, and hear what they say to it. They may ask for more, or end the conversation.

        Args:
            message: what you say to the user.
        """
        if not message.strip() or len(message) > LONGEST_MESSAGE:
            raise ToolError(f"a message has 1 to {LONGEST_MESSAGE} characters")
        if self.over:
            raise ToolError("the conversation is over")
        self.said.append(("policy", message))
        return await self._next()

    async def _next(self) -> str:
        text = (await self._user.say(self._goal, tuple(self.said), self._seed)).strip()
        told = [self._goal, *(message for who, message in self.said if who == "policy")]
        if slip := slip_in(text, told, self._names, is_first=not self.said):
            raise EnvironmentFault(f"the simulated user {slip}: {text[:200]!r}", FaultKind.USER)
        self.said.append(("user", text))
        self.over = STOP in text or sum(who == "user" for who, _ in self.said) >= self._most
        return text.replace(STOP, "").strip() or "The user has ended the conversation."


def slip_in(text: str, told: Sequence[str], names: frozenset[str], is_first: bool = False) -> str | None:
    """Return why a message breaks the user's role, or None.

    Args:
        told: what the user knows: the goal and the policy's messages.
        names: names that the user may know only from `told`.
    """
    words = text.replace(STOP, "").strip()
    if not text:
        return "says nothing"
    if len(text) > LONGEST_MESSAGE:
        return f"says more than {LONGEST_MESSAGE} characters"
    if is_first and STOP in text:
        return "ends before anything was asked"
    if _SHOWS.search(words):
        return "shows that it is simulated"
    if _REFUSES.search(words):
        return "refuses to play"
    known = "\n".join(told)
    unknown = sorted(name for name in names if _stands_in(name, words) and not _stands_in(name, known))
    return f"names {unknown[0]!r:.80}, which nothing told it" if unknown else None


def _stands_in(name: str, text: str) -> bool:
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
