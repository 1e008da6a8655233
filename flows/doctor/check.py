"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `advice` says what to do, and is empty where all is well."""

    name: str
    state: State
    detail: str
    advice: str = ""
