"""Rows of a query as dictionaries, and what stands in them as JSON: how every part of the report asks the lake."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from warehouse import Lake


def rows(lake: Lake, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The rows of a query as dictionaries."""
    found: list[dict[str, Any]] = lake.query(sql, parameters).to_pylist()
    return found


def parsed(value: Any) -> dict[str, Any]:
    """A JSON column, which comes as text or as a structure, as a dictionary."""
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}
