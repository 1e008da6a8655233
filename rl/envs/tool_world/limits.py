"""The limits of the code of written tools, for configurations: nothing that runs code is loaded with them."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from warehouse.settings import Section


class CodeLimits(Section):
    """What the code of a written tool may use; it always runs isolated, in the sandbox."""

    wall_seconds: PositiveFloat = Field(default=5.0, le=60)
    """A call that takes longer is a fault of the tool."""
    memory_mib: PositiveInt = 256
    concurrency: PositiveInt = 4
    """Programs at once in one process."""
