"""Homes that tests of flows make, synthesis in them, trajectories without turns, and the command line in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flows.cli import app
from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.pipeline import run_attempt
from flows.plan import SynthesisKind
from flows.stages.synthesis.stage import synthesise
from warehouse import Lake, Outcome, StopReason, Trajectory

SMALL = str(Path(__file__).parents[1] / "end_to_end" / "small.toml")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@contextmanager
def home_at(root: Path, *settings: str, profile: str = SMALL) -> Iterator[RunContext]:
    """A home with a lake and a configuration, and nothing made in it yet."""
    with Lake(root) as lake:
        yield RunContext(Home(root), load_config(profile, settings), lake)


def make(context: RunContext, kind: SynthesisKind = "all", turn: int = 1, run_id: str = "") -> dict[str, Any]:
    """Do one kind of synthesis of a turn, as a run; its figures."""
    name = run_id or f"t{turn}-synth"
    return run_attempt(context.lake, name, "synth", turn, {}, lambda run: synthesise(context, run, turn, kind))[1]


def ended(name: str, task: str, outcome: Outcome | None, policy: str = "p", stage: str = "eval", **more: Any) -> Trajectory:
    """A trajectory of which only the outcome matters."""
    return Trajectory(name, task, policy, stage, 5, (1,), (), StopReason.ANSWERED, outcome, None, 0, NOW, 0.1, **more)


def flywheel(*arguments: object, status: int = 0) -> str:
    """What a command prints; a wrong request is raised, as `main` catches it."""
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout
