"""Rows of a query as dictionaries: how every part of the report asks the lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warehouse import Lake


def rows(lake: Lake, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The rows of a query as dictionaries."""
    found: list[dict[str, Any]] = lake.query(sql, parameters).to_pylist()
    return found
