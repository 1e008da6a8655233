"""What a tool world is: a schema, a state that fits it, and tools as functions over that state.

A world of the same domain, seed and size is the same for ever, so that a task names its world by these three and holds a digest to
prove it. Keys of records follow from what they hold, never from a counter: what a policy tried before does not change them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from eval.state import State
from rl.tools import ToolError, ToolMiss
from warehouse.digests import digest, seed_from

Tables = dict[str, dict[str, dict[str, Any]]]
"""A state that is being changed; see `eval.state.State`."""
Schema = Mapping[str, Mapping[str, type]]
"""Table → field → the type of its values."""

NAMES = (
    "Amber",
    "Basil",
    "Cora",
    "Dario",
    "Elin",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kaya",
    "Lior",
    "Mira",
    "Nils",
    "Olga",
    "Pavel",
)


class World(ABC):
    """One world: its state, and its tools as methods that read and change it."""

    domain: ClassVar[str]
    """The name that tasks call this kind of world by."""
    schema: ClassVar[Schema]
    tools: ClassVar[tuple[str, ...]]
    """The methods that are tools; each takes JSON-able arguments and returns JSON."""

    def __init__(self, seed: int, size: int) -> None:
        """The world of `seed` with about `size` records in its largest tables."""
        self.state: Tables = self._populate(Random(seed_from("tool world", self.domain, seed, size)), size)

    @classmethod
    @abstractmethod
    def _populate(cls, rng: Random, size: int) -> Tables:
        """The state that the world begins with."""

    @property
    def digest(self) -> str:
        """Digest of the state as it is."""
        return digest(self.state)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call one of its tools by name.

        Raises:
            ToolError: where it has no such tool; whatever else a tool raises for arguments that do not suit it.
        """
        if name not in self.tools:
            raise ToolError(f"there is no tool {name!r:.100}; there are {', '.join(self.tools)}")
        return str(getattr(self, name)(**arguments))

    def misfits(self) -> list[str]:
        """Paths of what does not fit the schema; empty for a world in order."""
        return [
            f"{table}/{key}" for table, records in self.state.items() for key, record in records.items() if not self._fits(table, record)
        ]

    def _fits(self, table: str, record: Mapping[str, Any]) -> bool:
        fields = self.schema.get(table, {})
        return record.keys() == fields.keys() and all(type(record[name]) is kind for name, kind in fields.items())


def records_where(state: State, table: str, **wanted: Any) -> list[dict[str, Any]]:
    """The records whose fields have the wanted values, each with its `key`, in the order of their keys.

    Raises:
        ToolMiss: where there is none.
    """
    found = [
        {"key": key, **record}
        for key, record in sorted(state[table].items())
        if all(record[name] == value for name, value in wanted.items())
    ]
    if not found:
        raise ToolMiss(f"No {table} with {', '.join(f'{name} {value!r}' for name, value in wanted.items())}.")
    return found


def as_json(value: Any) -> str:
    """What a tool returns: short, and the same for the same value."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
