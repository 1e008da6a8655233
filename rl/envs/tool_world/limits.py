"""The limits of the code of written tools, for configurations: nothing that runs code is loaded with them."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from warehouse.settings import Section


class CodeLimits(Section):
    """What the code of a written tool may use; it always runs isolated, in the sandbox."""

    wall_seconds: PositiveFloat = Field(default=10.0, le=60)
    """A call that takes longer is a fault of the tool, as is one that takes more of the processor's time."""
    cpu_seconds: PositiveInt = 2
    memory_mib: PositiveInt = 256
    concurrency: PositiveInt = 4
    """Programs at once in one process."""
