"""Settings of planted bugs, separate from the implementation to load fast."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from warehouse.settings import Section

STAGE = "bugs"
"""Stage of failures in planting bugs."""


class BugsConfig(Section):
    """Repository tasks whose bugs are mutations of packages with tests."""

    packages: tuple[str, ...] = Field(min_length=1)
    """Folders, source distributions, wheels, or names of packages that this Python has installed."""
    count: PositiveInt = 20
    """Maximum bugs per package."""
    tries: PositiveInt = 4
    """Mutations to try per bug: many change nothing that a test notices."""
