"""The agent loops by their names, and the one that each task of a rollout asks for.

A loop is a factory that takes an engine, a dialect and limits. The configuration names it as any code of one's own is named (see
`warehouse/plugins.py`); a task may name those below, what is installed, and what the configuration lists under `rollout.loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, cast

from transformers import PreTrainedTokenizerBase

from rl.config import Limits, RolloutConfig
from rl.policies.vision import Vision
from rl.renderers.base import Dialect
from rl.renderers.registry import open_dialect
from rl.rollouts.agent_loop import Generator, RolloutRequest, Surroundings
from rl.rollouts.choices import choice_of
from warehouse.plugins import Registry
from warehouse.records import Task, Trajectory

LOOPS = Registry(
    "agent loop",
    {"react": "rl.rollouts.agent_loop:AgentLoop", "langgraph": "rl.rollouts.langgraph_loop:LangGraphLoop"},
    "agent_flywheel.loops",
    "rollout.loops",
)


class Loop(Protocol):
    """Runs trajectories; whatever happens, each ends in one of the three outcomes."""

    async def run(self, request: RolloutRequest, environment: Surroundings) -> Trajectory:
        """Run one trajectory to its end."""
        ...


LoopFactory = Callable[[Generator, Dialect, Limits], Loop]


class AgentLoops:
    """One loop for each pair of loop and dialect that tasks ask for, on one engine; each dialect is opened once.

    `vision` is what the policy makes of images, where it takes any.
    """

    def __init__(self, config: RolloutConfig, tokenizer: PreTrainedTokenizerBase, vision: Vision | None = None) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vision = vision
        self._dialects: dict[str, Dialect] = {}
        self._loops: dict[tuple[str, str], Loop] = {}

    def check(self, tasks: Iterable[Task]) -> None:
        """See that every loop and dialect is there before anything runs.

        Raises:
            RequestError: where one is not, or where the policy's tokenizer does not go with it.
        """
        for task in tasks:
            choice = choice_of(task)
            self._factory(choice.loop)
            self.dialect(choice.dialect or self._config.dialect)

    def dialect(self, name: str) -> Dialect:
        """The dialect called `name`. Raises as `open_dialect` does."""
        if name not in self._dialects:
            self._dialects[name] = open_dialect(name, self._config.dialects, self._tokenizer, self._vision)
        return self._dialects[name]

    def loop_for(self, task: Task, engine: Generator) -> Loop:
        """The loop that `task` asks for, over `engine`."""
        choice = choice_of(task)
        key = (choice.loop or self._config.loop, choice.dialect or self._config.dialect)
        if key not in self._loops:
            self._loops[key] = self._factory(choice.loop)(engine, self.dialect(key[1]), self._config.limits)
        return self._loops[key]

    def _factory(self, chosen: str | None) -> LoopFactory:
        """The loop that a task chose, or that of the configuration where it chose none."""
        listed = self._config.loops
        found = LOOPS.load(listed.get(self._config.loop, self._config.loop)) if chosen is None else LOOPS.load_recorded(chosen, listed)
        return cast(LoopFactory, found)
