"""`--set key=value` on the command line, merged over the table that a profile's TOML gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from warehouse.errors import RequestError


def parse_override(text: str) -> tuple[list[str], Any]:
    """Split `rl.horizon.rounds=[2,4]` into its path and its value; a value that is no JSON is taken as a string."""
    key, separator, value = text.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise RequestError(f"--set {text!r} is not of the form key=value; write for example --set seed=7.")
    try:
        return [part.strip() for part in key.split(".")], json.loads(value)
    except json.JSONDecodeError:
        return [part.strip() for part in key.split(".")], value


def apply_overrides(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `table` with each override written at its path; tables on the way are made where they are missing."""
    merged: dict[str, Any] = json.loads(json.dumps(table))
    for override in overrides:
        path, value = parse_override(override)
        place = merged
        for depth, part in enumerate(path[:-1]):
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise RequestError(f"--set {override!r}: {'.'.join(path[: depth + 1])} is a value, not a table.")
        place[path[-1]] = value
    return merged
