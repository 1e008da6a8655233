"""A garden as a tool world: its beds are a table, and three tools look things up in it and change it. Yours looks like this.

The rows of a world follow from its seed and size alone. A tool is SQL; what it refuses it says after `-- else:`, and the policy reads it.
"""

from __future__ import annotations

from random import Random

from rl.envs.tool_world.definition import GeneratedWorld, Rows

HELD_OUT = ("borage", "fennel", "mint", "thyme")
"""Plants that no task of training asks about."""
_GROWN = "basil beans borage carrots chard chives cress dill fennel garlic kale leek mint onions parsley peas sage thyme"
PLANTS = tuple(_GROWN.split())
BEDS = tuple(f"{row}{place}" for row in "ABCDEF" for place in range(1, 10))


def beds(rng: Random, size: int) -> Rows:
    """Beds, each with a plant and the litres that it was given today."""
    plants, names = rng.sample(PLANTS, size), rng.sample(BEDS, size)
    return {"beds": [{"bed": bed, "plant": plant, "litres": rng.randint(0, 4)} for plant, bed in zip(plants, names, strict=True)]}


GARDEN = GeneratedWorld(
    "garden",
    "CREATE TABLE beds (bed TEXT PRIMARY KEY, plant TEXT NOT NULL, litres INTEGER NOT NULL);",
    """
-- tool: find
-- Say in which bed a plant grows.
-- :plant text its name
SELECT bed FROM beds WHERE plant = :plant;

-- tool: water
-- Water a bed.
-- :bed text its name
-- :litres integer how much, 1 to 9
SELECT 1 WHERE :litres BETWEEN 1 AND 9; -- else: a can holds 1 to 9 litres
UPDATE beds SET litres = litres + :litres WHERE bed = :bed RETURNING plant, litres; -- else: nothing grows there

-- tool: harvest
-- Take out what grows in a bed.
-- :bed text its name
DELETE FROM beds WHERE bed = :bed RETURNING plant, litres; -- else: nothing grows there
""",
    beds,
)
