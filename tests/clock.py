"""Time that other work on the machine does not lengthen: the processor's, for this process and the children that it has waited for."""

from __future__ import annotations

import os


def processor_seconds() -> float:
    """The processor's seconds so far."""
    return sum(os.times()[:4])
