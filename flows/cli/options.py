"""Options that many commands share, and JSON on standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

HomeOption = Annotated[Path, typer.Option("--home", envvar="FLYWHEEL_HOME", help="The run's folder.")]
ProfileOption = Annotated[str | None, typer.Option(help="A profile by name (quickstart, movies, …) or the path of a TOML file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. rl.steps=60; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output and nothing else.")]


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, ensure_ascii=False, default=str, indent=2))
