"""The agent loops by their names, and the one that each task of a rollout asks for.

A loop is named by one of the names below or by `module:attribute`: a factory that takes an engine, a dialect and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Protocol, cast

from transformers import PreTrainedTokenizerBase

from rl.config import Limits, RolloutConfig
from rl.dialect import Dialect
from rl.dialects.opening import open_dialect
from rl.policies.vision import Vision
from rl.rollouts.agent_loop import Generator, RolloutRequest, Surroundings
from rl.rollouts.choices import choice_of
from warehouse.errors import RequestError
from warehouse.records import Task, Trajectory

LOOPS = {"react": "rl.rollouts.agent_loop:AgentLoop", "langgraph": "rl.rollouts.langgraph_loop:LangGraphLoop"}


class Loop(Protocol):
    """Runs trajectories; whatever happens, each ends in one of the three outcomes."""

    async def run(self, request: RolloutRequest, environment: Surroundings) -> Trajectory:
        """Run one trajectory to its end."""
        ...


LoopFactory = Callable[[Generator, Dialect, Limits], Loop]


def find_loop(name: str) -> LoopFactory:
    """The factory of the loop called `name`.

    Raises:
        RequestError: where there is none.
    """
    module, _, attribute = LOOPS.get(name, name).partition(":")
    if not module or not attribute:
        raise RequestError(f"there is no agent loop {name!r}; name one of {', '.join(LOOPS)}, or give module:attribute.")
    try:
        return cast(LoopFactory, getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise RequestError(f"the agent loop {name!r} cannot be imported: {error}.") from error


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
            find_loop(choice.loop or self._config.loop)
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
            self._loops[key] = find_loop(key[0])(engine, self.dialect(key[1]), self._config.limits)
        return self._loops[key]
