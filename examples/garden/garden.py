"""A garden as a tool world: its beds are the state, and three tools look things up in it and change it. Yours looks like this.

A world follows from its seed and size alone. A tool takes and returns JSON; what it cannot do it says by a `ToolError`, and the policy
reads it.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from rl.envs.tool_world.environment import World, as_json
from rl.tools import ToolError, ToolMiss

HELD_OUT = ("borage", "fennel", "mint", "thyme")
"""Plants that no task of training asks about."""
_GROWN = "basil beans borage carrots chard chives cress dill fennel garlic kale leek mint onions parsley peas sage thyme"
PLANTS = tuple(_GROWN.split())
BEDS = tuple(f"{row}{place}" for row in "ABCDEF" for place in range(1, 10))


class Garden(World):
    """Beds by their names, each with a plant and the litres that it was given today."""

    domain = "garden"
    schema: ClassVar = {"beds": {"plant": str, "litres": int}}
    tools = ("find", "water", "harvest")

    @classmethod
    def _populate(cls, rng: Random, size: int) -> dict[str, dict[str, dict[str, Any]]]:
        plants, beds = rng.sample(PLANTS, size), rng.sample(BEDS, size)
        return {"beds": {bed: {"plant": plant, "litres": rng.randint(0, 4)} for plant, bed in zip(plants, beds, strict=True)}}

    def find(self, plant: str) -> str:
        """Say in which bed a plant grows.

        Args:
            plant: its name.
        """
        beds = [bed for bed, record in sorted(self.state["beds"].items()) if record["plant"] == plant]
        if not beds:
            raise ToolMiss(f"no {plant} grows here")
        return as_json({"bed": beds[0]})

    def water(self, bed: str, litres: int) -> str:
        """Water a bed.

        Args:
            bed: its name.
            litres: how much, 1 to 9.
        """
        if litres not in range(1, 10):
            raise ToolError("a can holds 1 to 9 litres")
        self._bed(bed)["litres"] += litres
        return as_json(self._bed(bed))

    def harvest(self, bed: str) -> str:
        """Take out what grows in a bed.

        Args:
            bed: its name.
        """
        self._bed(bed)
        return as_json(self.state["beds"].pop(bed))

    def _bed(self, bed: str) -> dict[str, Any]:
        if bed not in self.state["beds"]:
            raise ToolError(f"nothing grows in {bed}")
        return self.state["beds"][bed]
