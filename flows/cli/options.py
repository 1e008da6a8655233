"""Options shared by many commands, and JSON output."""

from __future__ import annotations

import json
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

SHOWN_ROWS = 200
"""Default number of table rows to print."""


class Format(StrEnum):
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output and nothing else.")]


def print_json(value: Any) -> None:
    print(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """Serialize `value` as JSON: decimals become numbers, NaN and infinities null, and other unsupported types text."""
    return json.dumps(_finite(value), ensure_ascii=False, default=str, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    number = float(value) if isinstance(value, Decimal) else value
    return None if isinstance(number, float) and not isfinite(number) else number
