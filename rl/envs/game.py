"""Gymnasium games as environments: observations are text, and the policy plays through one tool, `act`.

Text observations are shown unchanged; other games must render as text (`render_mode="ansi"`, as gymnasium's toy games do). Discrete actions
go by name, text actions as written. A task may add game arguments in its provenance, `{"game": {"desc": ["SF", "FG"]}}`, if the option
`task_arguments` lists them. Use them for what all trajectories of a task share, because the seed of `reset` differs between trajectories.

`flywheel/House-v0` is a built-in text game: find the key, open the chest, take the coin out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Text
from pydantic import Field

from rl.envs.base import EnvironmentFault, Observation, Resources, Step
from rl.envs.tool_use import StatefulEnvironment
from rl.tools import ToolError, tool
from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""Action names of gymnasium's games, by name without version; actions of other games go by number."""

HOUSE = "flywheel/House-v0"
ROOMS = ("hall", "kitchen", "cellar", "attic", "study", "pantry", "library", "workshop", "garden", "stable", "parlour", "gallery")
WINDS = {"north": "south", "south": "north", "east": "west", "west": "east"}
MAX_TEXT = 400
CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?'-\n")
_HIGHLIGHT = re.compile(r"\x1b\[\d+m(.)\x1b\[0m")


class GameOptions(Section):
    """Options of the environment `game`."""

    game: str = "FrozenLake-v1"
    """Gymnasium id of the game, or `module:id` for a game that a module registers."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the game, such as `{is_slippery = false}`."""
    task_arguments: tuple[str, ...] = ("desc", "is_slippery", "map_name", "house", "rooms", "max_moves")
    """Game arguments that a task may set, by default FrozenLake's and House's. Tasks are untrusted data: list harmless arguments only."""
    actions: tuple[str, ...] = ()
    """Names of the game's discrete actions in order, if it has no built-in names."""


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
        observation, reward, terminated, truncated, _ = self._game.step(self._move(action))
        self._reward, self._done = float(reward), terminated or truncated
        return self._as_text(observation)

    async def reset(self, task: Task, seed: int) -> Observation:
        await self.close()
        self._game = make_game(self._options, _arguments_of(task, self._options))
        self._names = action_names(self._game, self._options)
        self._reward, self._total, self._done = 0.0, 0.0, False
        observation, _ = self._game.reset(seed=seed)
        moves = f"\nMoves: {', '.join(self._names)}." if self._names else ""
        return replace(await super().reset(task, seed), text=self._as_text(observation) + moves)

    async def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None

    def _complete(self, step: Step) -> Step:
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

    def _as_text(self, observation: Any) -> str:
        """Observation as text; highlighted characters of coloured renderings are put in brackets."""
        if isinstance(observation, str):
            return observation
        assert self._game is not None
        return _HIGHLIGHT.sub(r"[\1]", str(self._game.render())).strip()


def _arguments_of(task: Task, options: GameOptions) -> dict[str, Any]:
    given = task.provenance.get("game", {})
    if not isinstance(given, Mapping) or (unlisted := sorted(set(given) - set(options.task_arguments))):
        what = f"the argument {unlisted[0]!r:.100}" if isinstance(given, Mapping) else "arguments that are not an object"
        raise EnvironmentFault(
            f"the task {task.key} passes its game {what}; the option task_arguments allows {', '.join(options.task_arguments) or 'none'}"
        )
    return dict(given)


def make_game(options: GameOptions, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Create the game. Raises RequestError if it does not exist, or cannot be shown or played as text."""
    drawn = {} if options.game == HOUSE else {"render_mode": "ansi"}
    try:
        game = gymnasium.make(options.game, **{**drawn, **options.arguments, **arguments})
    except (gymnasium.error.Error, ImportError, LookupError, TypeError, ValueError) as error:
        raise RequestError(f"the game {options.game!r} cannot be created: {type(error).__name__}: {error}.") from error
    if not isinstance(game.action_space, Discrete | Text):
        raise RequestError(f"the game {options.game!r} has the action space {game.action_space}; only Discrete and Text are supported.")
    if not isinstance(game.observation_space, Text) and "ansi" not in game.metadata.get("render_modes", ()):
        raise RequestError(f"the game {options.game!r} cannot be shown as text: it has no render mode 'ansi'.")
    return game


def action_names(game: gymnasium.Env[Any, Any], options: GameOptions) -> tuple[str, ...]:
    """Names of a game's discrete actions, in order; empty for text actions."""
    space = game.action_space
    if not isinstance(space, Discrete):
        return ()
    names = options.actions or ACTIONS.get(options.game.rpartition(":")[2].rpartition("-v")[0]) or tuple(map(str, range(int(space.n))))
    if len(names) != space.n:
        raise RequestError(f"the game {options.game!r} has {space.n} actions, but the option 'actions' names {len(names)}.")
    return names


def create(resources: Resources) -> GameEnvironment:
    return GameEnvironment(resources.read(GameOptions))


class House(gymnasium.Env[str, str]):
    """A tree of rooms with a key in one and a locked chest in another, generated from the seed `house`.

    An observation describes the room; an action is a sentence: `go north`, `take key`, `open chest`, `look`, `inventory`. Taking the coin
    ends the game with reward 1; after `max_moves` it is truncated with reward 0.
    """

    def __init__(self, house: int = 0, rooms: int = 6, max_moves: int = 40, render_mode: str | None = None) -> None:
        if not 3 <= rooms <= len(ROOMS):
            raise ValueError(f"a house has 3 to {len(ROOMS)} rooms")
        self.render_mode = render_mode
        self.observation_space = Text(MAX_TEXT, charset=CHARACTERS)
        self.action_space = Text(MAX_TEXT, charset=CHARACTERS)
        self._max_moves = max_moves
        rng = Random(house)
        names = rng.sample(ROOMS, rooms)
        self.doors = _doors(names, rng)
        """Room → direction → room."""
        self.key_room, self.chest_room = rng.sample(names[1:], 2)
        self._first = names[0]
        self._begin()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin()
        return self._look(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._moves += 1
        verb, _, noun = " ".join(action.lower().split()).partition(" ")
        observation = self._act(verb, noun)
        return observation, float(self._won), self._won, self._moves >= self._max_moves and not self._won, {}

    def _begin(self) -> None:
        self.room, self._moves = self._first, 0
        self._has_key = self._open = self._won = False

    def _act(self, verb: str, noun: str) -> str:
        if verb == "go" and noun in self.doors[self.room]:
            self.room = self.doors[self.room][noun]
            return self._look()
        if verb == "look":
            return self._look()
        if verb == "inventory":
            return "You have a key." if self._has_key else "You have nothing."
        if (verb, noun) == ("take", "key") and self.room == self.key_room and not self._has_key:
            self._has_key = True
            return "You take the key."
        if (verb, noun) == ("open", "chest") and self.room == self.chest_room:
            self._open = self._has_key
            return "The chest is open. There is a coin in it." if self._open else "It is locked."
        if (verb, noun) == ("take", "coin") and self.room == self.chest_room and self._open:
            self._won = True
            return "You take the coin. You have won."
        return "That cannot be done here."

    def _look(self) -> str:
        things = ["a key"] if self.room == self.key_room and not self._has_key else []
        things += [f"{'an open' if self._open else 'a closed'} chest"] if self.room == self.chest_room else []
        visible = f" You see {' and '.join(things)}." if things else ""
        return f"You are in the {self.room}.{visible} Doors: {', '.join(sorted(self.doors[self.room]))}."


def _doors(names: list[str], rng: Random) -> dict[str, dict[str, str]]:
    """Build a tree of rooms: connect each room after the first to an earlier one in a free direction."""
    doors: dict[str, dict[str, str]] = {name: {} for name in names}
    for number, name in enumerate(names[1:], 1):
        room = rng.choice([earlier for earlier in names[:number] if len(doors[earlier]) < len(WINDS)])
        wind = rng.choice([wind for wind in WINDS if wind not in doors[room]])
        doors[room][wind] = name
        doors[name][WINDS[wind]] = room
    return doors


gymnasium.register(HOUSE, entry_point=f"{__name__}:House", disable_env_checker=True)
