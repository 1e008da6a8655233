"""`flywheel lake` and what `flywheel sql` says of a lake: versions, meanings, pins, upkeep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from warehouse import Lake, Pin, RequestError, Task

pytestmark = pytest.mark.slow

QUERY = "SELECT key FROM tasks"


def flywheel(*arguments: str, status: int = 0) -> str:
    """What a command prints; wrong requests are raised, as `main` catches them."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.output


def test_pins_are_kept_listed_read_and_let_go(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    with Lake(tmp_path) as lake:
        lake.add([Task("t1", "search", "?", ("a",))])
    made = json.loads(flywheel("lake", "pin", "first", "--query", QUERY, *home, "--json"))
    assert made["n_rows"] == 1
    with Lake(tmp_path) as lake:
        lake.add([Task("t2", "search", "?", ("a",))])
    assert json.loads(flywheel("sql", QUERY, "--at", "first", *home, "--format", "json")) == [{"key": "t1"}]
    assert "snapshots expired" in flywheel("lake", "retain", "0", *home) and "files" in flywheel("lake", "compact", *home)
    assert json.loads(flywheel("lake", "pins", *home, "--json")) == [made | {"same": True}]
    with Lake(tmp_path) as lake:
        lake.replace([replace(pin, digest="another") for pin in lake.read(Pin)])
    assert "OTHER ROWS" in flywheel("lake", "pins", *home, status=1)
    flywheel("lake", "unpin", "first", *home)
    with pytest.raises(RequestError, match="no pin 'first'"):
        flywheel("sql", QUERY, "--at", "first", *home)
