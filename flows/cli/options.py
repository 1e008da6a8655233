"""Options that many commands share, and JSON on standard output."""

from __future__ import annotations

import json
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

SHOWN_ROWS = 200
"""Rows of a table that are shown unless more are asked for."""


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"
    parquet = "parquet"


HomeOption = Annotated[Path, typer.Option("--home", envvar="FLYWHEEL_HOME", help="The run's folder.")]
ProfileOption = Annotated[str | None, typer.Option(help="A profile by name (quickstart, movies, …) or the path of a TOML file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. rl.steps=60; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output and nothing else.")]


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, ensure_ascii=False, default=json_value, indent=2))


def json_value(value: Any) -> Any:
    """What JSON has no form for: decimals as numbers, all else as text."""
    return float(value) if isinstance(value, Decimal) else str(value)
