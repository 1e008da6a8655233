"""The limits of the code of written tools, for configurations: nothing that runs code is loaded with them."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from warehouse.settings import Section


class CodeLimits(Section):
    """Sandbox limits of generated tool code."""

    wall_seconds: PositiveFloat = Field(default=10.0, le=60)
    """Wall time per call."""
    cpu_seconds: PositiveInt = 2
    """CPU time per call."""
    memory_mib: PositiveInt = 256
    """Memory per call."""
    concurrency: PositiveInt = 4
    """Concurrent programs per process."""
