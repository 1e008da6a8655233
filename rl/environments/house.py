"""A text game for gymnasium, `flywheel/House-v0`: find the key, open the chest, take the coin out.

A house of rooms in a tree, made from a seed: rooms lead to each other by the four winds; a key lies in one room and a locked chest
stands in another. What is seen is the room; what is done is written: `go north`, `take key`, `open chest`, `look`, `inventory`. Taking
the coin ends the game with a reward of 1; after `max_moves` it ends with nothing.
"""

from __future__ import annotations

from random import Random
from typing import Any

import gymnasium
from gymnasium.spaces import Text

HOUSE = "flywheel/House-v0"
NAMES = ("hall", "kitchen", "cellar", "attic", "study", "pantry", "library", "workshop", "garden", "stable", "parlour", "gallery")
WINDS = {"north": "south", "south": "north", "east": "west", "west": "east"}
MAX_TEXT = 400
CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?'-\n")


class House(gymnasium.Env[str, str]):
    """One house, the same for the same `house` and `rooms`."""

    def __init__(self, house: int = 0, rooms: int = 6, max_moves: int = 40, render_mode: str | None = None) -> None:
        if not 3 <= rooms <= len(NAMES):
            raise ValueError(f"a house has 3 to {len(NAMES)} rooms")
        self.render_mode = render_mode
        self.observation_space = Text(MAX_TEXT, charset=CHARACTERS)
        self.action_space = Text(MAX_TEXT, charset=CHARACTERS)
        self._max_moves = max_moves
        rng = Random(house)
        names = rng.sample(NAMES, rooms)
        self.doors = _doors(names, rng)
        """Room → wind → room."""
        self.key_room, self.chest_room = rng.sample(names[1:], 2)
        self._first = names[0]
        self._begin()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Stand in the first room with nothing."""
        super().reset(seed=seed)
        self._begin()
        return self._look(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do what is written."""
        self._moves += 1
        verb, _, noun = " ".join(action.lower().split()).partition(" ")
        seen = self._done(verb, noun)
        return seen, float(self._won), self._won, self._moves >= self._max_moves and not self._won, {}

    def _begin(self) -> None:
        self.room, self._moves = self._first, 0
        self._has_key = self._open = self._won = False

    def _done(self, verb: str, noun: str) -> str:
        """What comes of an action."""
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
        seen = f" You see {' and '.join(things)}." if things else ""
        return f"You are in the {self.room}.{seen} Doors: {', '.join(sorted(self.doors[self.room]))}."


def _doors(names: list[str], rng: Random) -> dict[str, dict[str, str]]:
    """A tree of rooms: each after the first is joined to an earlier one by a wind that is free there."""
    doors: dict[str, dict[str, str]] = {name: {} for name in names}
    for number, name in enumerate(names[1:], 1):
        room = rng.choice([earlier for earlier in names[:number] if len(doors[earlier]) < len(WINDS)])
        wind = rng.choice([wind for wind in WINDS if wind not in doors[room]])
        doors[room][wind] = name
        doors[name][WINDS[wind]] = room
    return doors


gymnasium.register(HOUSE, entry_point=f"{__name__}:House", disable_env_checker=True)
