"""A simulated user: a model that plays somebody with a goal, which the policy learns by talking to them (tau-bench, arXiv 2406.12045).

The policy speaks by the tool `respond` and sees what the user says next. The user ends the conversation with a stop mark, which ends the
trajectory; what the state is by then is what is judged. What the user says is checked, for a slip of theirs says nothing about the policy:

    says nothing, or was cut off      shows that there is a model    refuses to play
    ends before anything was asked    names what only the records hold

The last is how a contradiction to what is given is seen: a name that stands in the world's records, and neither in the goal nor in what the
policy has told, is one that the user cannot have. A slip, and a server that does not answer, make the trajectory invalid, never failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import Field, PositiveInt

from eval.graders.state import State
from rl.envs.base import EnvironmentFault, FaultKind
from rl.tools import ToolError
from warehouse.plugins import Registry
from warehouse.settings import Section

USER = "user"
"""Where a task's provenance holds the goal of its user."""
RESPOND = "respond"
"""The tool that the policy speaks to the user by."""
STOP = "###STOP###"
"""What a user writes who has what they want, or gives up."""
LONGEST_MESSAGE = 2_000
"""Characters of a message of either side."""

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
"""Who says something, `user` or `policy`, and what."""


class UserGoal(Section):
    """What a task says of its user."""

    goal: str = Field(min_length=1, max_length=4_000)
    """What they want, in words; the policy never sees it."""


class SimulatedUser(Protocol):
    """Plays users; one for all trajectories of a worker."""

    async def say(self, goal: str, said: Sequence[Said], seed: int) -> str:
        """What a user with `goal` says next; the first thing where nothing is `said` yet. Whatever it raises is a fault."""
        ...


SimulatedUserFactory = Callable[[Mapping[str, Any]], SimulatedUser]
"""Options → who plays the users."""


class UserOptions(Section):
    """Who plays the users of tasks that have one."""

    factory: str
    """What makes it: a name of the entry points `agent_flywheel.simulated_users`, `module:factory` or `file.py:factory`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory takes."""
    most_messages: PositiveInt = 30
    """Messages of the user; one who wants to say more ends the conversation."""


class Conversation:
    """What user and policy say to each other in one trajectory."""

    def __init__(self, user: SimulatedUser, goal: str, names: frozenset[str], seed: int, most_messages: int) -> None:
        """`names` are what the records of the world hold, and the user knows from the goal or from the policy alone."""
        self._user, self._goal, self._names, self._seed, self._most = user, goal, names, seed, most_messages
        self.said: list[Said] = []
        self.over = False

    async def open(self) -> str:
        """The user's first message. Raises EnvironmentFault where they slip, or are not there."""
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


def names_in(state: State) -> frozenset[str]:
    """What the records of a state are called: their keys, and the texts in them that begin with a capital or hold a digit."""
    found = set[str]()
    for records in state.values():
        for key, record in records.items():
            texts = (key, *(value for value in record.values() if isinstance(value, str)))
            found.update(text for text in texts if len(text) > 2 and (text[0].isupper() or any(map(str.isdigit, text))))
    return frozenset(found)


def slip_in(text: str, told: Sequence[str], names: frozenset[str], is_first: bool = False) -> str | None:
    """How a user who said `text` fell out of their part; None where they did not.

    Args:
        told: what they know: their goal, and what the policy said.
        names: what they know of only if it was told.
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
    """Whether a name stands in a text as whole words."""
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
