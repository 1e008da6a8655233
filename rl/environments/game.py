"""Games of gymnasium as environments: what is seen is text, and a policy plays by one tool, `act`.

An observation that is text is shown as it is; any other game must be able to draw itself as text (`render_mode="ansi"`, as gymnasium's
toy games do). A discrete action goes by its name, a text action as it is written. A task may add arguments of the game in its
provenance, `{"game": {"desc": ["SF", "FG"]}}`, as far as the option `task_arguments` lists them: what is the same for all trajectories
of the task belongs there, for the seed of `reset` differs between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Text
from pydantic import Field

from rl.environment import EnvironmentFault, Observation, Resources, Step
from rl.environments.house import HOUSE
from rl.environments.stateful import StatefulEnvironment
from rl.tools import ToolError, tool
from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""What the actions of gymnasium's games are called, by the game without its version; others go by their numbers."""

_HIGHLIGHT = re.compile(r"\x1b\[\d+m(.)\x1b\[0m")


class GameOptions(Section):
    """Options of the environment `game`."""

    game: str = "FrozenLake-v1"
    """The game's id in gymnasium, `module:id` for one that a module registers; `flywheel/House-v0` is a text game of ours."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the game, such as `{is_slippery = false}`."""
    task_arguments: tuple[str, ...] = ("desc", "is_slippery", "map_name", "house", "rooms", "max_moves")
    """Arguments of the game that a task may give; FrozenLake's and House's unless others are named.

    A task is data, and a game may do anything by an argument."""
    actions: tuple[str, ...] = ()
    """Names of its discrete actions in their order, where the game's own are not known."""


class GameEnvironment(StatefulEnvironment):
    """One game of one trajectory."""

    def __init__(self, options: GameOptions) -> None:
        super().__init__({"act": tool(self.act)})
        self._options = options
        self._game: gymnasium.Env[Any, Any] | None = None
        self._names: tuple[str, ...] = ()
        self._reward = 0.0
        self._total = 0.0
        self._done = False

    async def act(self, action: str) -> str:
        """Make a move.

        Args:
            action: the move, by its name.
        """
        assert self._game is not None
        seen, reward, terminated, truncated, _ = self._game.step(self._move(action))
        self._reward, self._done = float(reward), terminated or truncated
        return self._shown(seen)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Set up the game."""
        await self.close()
        self._game = make_game(self._options, _arguments_of(task, self._options))
        self._names = action_names(self._game, self._options)
        self._reward, self._total, self._done = 0.0, 0.0, False
        seen, _ = self._game.reset(seed=seed)
        moves = f"\nMoves: {', '.join(self._names)}." if self._names else ""
        return replace(await super().reset(task, seed), text=self._shown(seen) + moves)

    async def close(self) -> None:
        """Give back what the game holds."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _told(self, step: Step) -> Step:
        """A step with the game's reward; giving up with an answer is worth nothing more."""
        reward, self._reward = self._reward, 0.0
        self._total += reward
        figures = {**step.info.get("figures", {}), "return": self._total}
        return replace(step, reward=reward, done=step.done or self._done, info={**step.info, "figures": figures})

    def _move(self, action: str) -> Any:
        assert self._game is not None
        space = self._game.action_space
        if isinstance(space, Text):
            return action.strip()
        if action.strip().lower() not in self._names:
            raise ToolError(f"there is no move {action!r}, only {', '.join(self._names)}")
        assert isinstance(space, Discrete)
        return int(space.start) + self._names.index(action.strip().lower())

    def _shown(self, seen: Any) -> str:
        """What the policy sees; where the game draws in colours, what they mark stands in brackets."""
        if isinstance(seen, str):
            return seen
        assert self._game is not None
        return _HIGHLIGHT.sub(r"[\1]", str(self._game.render())).strip()


def _arguments_of(task: Task, options: GameOptions) -> dict[str, Any]:
    given = task.provenance.get("game", {})
    if not isinstance(given, Mapping) or (unlisted := sorted(set(given) - set(options.task_arguments))):
        what = f"the argument {unlisted[0]!r:.100}" if isinstance(given, Mapping) else "something that is no object of arguments"
        raise EnvironmentFault(
            f"the task {task.key} gives its game {what}; the option task_arguments allows {', '.join(options.task_arguments) or 'none'}"
        )
    return dict(given)


def make_game(options: GameOptions, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """The game that options and a task ask for.

    Raises:
        RequestError: where there is none, or it cannot be shown or played in text.
    """
    drawn = {} if options.game == HOUSE else {"render_mode": "ansi"}
    try:
        game = gymnasium.make(options.game, **{**drawn, **options.arguments, **arguments})
    except (gymnasium.error.Error, ImportError, LookupError, TypeError, ValueError) as error:
        raise RequestError(f"the game {options.game!r} cannot be set up: {type(error).__name__}: {error}.") from error
    if not isinstance(game.action_space, Discrete | Text):
        raise RequestError(
            f"the game {options.game!r} has actions of the kind {game.action_space}; only discrete and text ones can be played."
        )
    if not isinstance(game.observation_space, Text) and "ansi" not in game.metadata.get("render_modes", ()):
        raise RequestError(f"the game {options.game!r} cannot be shown as text: it has no render mode 'ansi'.")
    return game


def action_names(game: gymnasium.Env[Any, Any], options: GameOptions) -> tuple[str, ...]:
    """The names of a game's discrete actions, in their order; none for actions that are text."""
    space = game.action_space
    if not isinstance(space, Discrete):
        return ()
    names = options.actions or ACTIONS.get(options.game.rpartition(":")[2].rpartition("-v")[0]) or tuple(map(str, range(int(space.n))))
    if len(names) != space.n:
        raise RequestError(f"the game {options.game!r} has {space.n} actions, and the option 'actions' names {len(names)}.")
    return names


def create(resources: Resources) -> GameEnvironment:
    """The environment of one trajectory."""
    return GameEnvironment(resources.read(GameOptions))
