"""A reward model or a judge as an environment: what the policy hands in is scored, and that is its reward.

A scorer is anything with `score(task, text) -> Judgement`: a reward model, a model behind a server, a function of one's own. A judge
that fails, or says what cannot be read, is a fault: the trajectory is invalid, never a zero. By `drafts` a policy may hand in drafts
first and be told the scorer's comment, though not the value; only the answer is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from pydantic import Field, NonNegativeInt

from rl.environment import EnvironmentFault, Observation, Resources, Step
from rl.environments.stateful import StatefulEnvironment
from rl.renderers.base import Action
from rl.tools import ToolError, tool
from warehouse.plugins import Registry
from warehouse.records import Task
from warehouse.settings import Section

SCORERS = Registry(
    "scorer", {"reward_model": "rl.scorers.reward_model:create", "server": "rl.scorers.server:create"}, "agent_flywheel.scorers"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a scorer thinks of a text: a value, and words that the policy may be shown."""

    value: float
    comment: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


class Scorer(Protocol):
    """Scores what a policy handed in; one for all trajectories of a worker."""

    async def score(self, task: Task, text: str) -> Judgement:
        """The judgement of `text` as an attempt at `task`. Whatever it raises is a fault."""
        ...


ScorerFactory = Callable[[Mapping[str, Any]], Scorer]
"""Options → scorer."""


class JudgeOptions(Section):
    """Options of the environment `judge`."""

    scorer: str = "server"
    """`reward_model`, `server`, `module:factory` or `file.py:factory`; the factory takes the options below."""
    options: dict[str, Any] = Field(default_factory=dict)
    drafts: NonNegativeInt = 0
    """How many drafts a policy may hand in before its answer, by the tool `draft`."""


class JudgeEnvironment(StatefulEnvironment):
    """One text of one trajectory, and what it is worth."""

    def __init__(self, scorer: Scorer, drafts: int) -> None:
        super().__init__({"draft": tool(self.draft)} if drafts else {})
        self._scorer = scorer
        self._drafts = drafts
        self._task: Task | None = None

    async def draft(self, text: str) -> str:
        """Hand in a draft, to be told what is thought of it.

        Args:
            text: the draft.
        """
        if not self._drafts:
            raise ToolError("no draft is left; answer now")
        self._drafts -= 1
        return (await self._judged(text)).comment or "There is no comment."

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take the task."""
        self._task = task
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        """Comment on a draft, or score the answer."""
        step = await super().step(action)
        if not step.done:
            return step
        judgement = await self._judged(action.arguments)
        return replace(step, reward=judgement.value, info={**step.info, "figures": dict(judgement.figures)})

    async def _judged(self, text: str) -> Judgement:
        if self._task is None:
            raise EnvironmentFault("nothing can be judged before the reset")
        return await self._scorer.score(self._task, text)

    def _told(self, step: Step) -> Step:
        return step


def create(resources: Resources) -> JudgeEnvironment:
    """The environment of one trajectory."""
    options = resources.read(JudgeOptions)
    factory = cast(ScorerFactory, SCORERS.load(options.scorer))
    return JudgeEnvironment(resources.once("scorer", lambda: factory(options.options)), options.drafts)
