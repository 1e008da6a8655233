"""Homes of benchmarks that compare: one for each variant and seed, made by the wheel's own stages without its flows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.config import FlywheelConfig
from flows.context import RunContext, StageRun
from flows.home import Home
from flows.operations.budgets import Meter
from flows.pipeline import run_attempt

Work = Callable[[StageRun], dict[str, Any]]


def place(root: Path, name: str, seed: int) -> Home:
    """The home of a variant on a seed."""
    return Home(root / f"seed{seed}" / name)


def overrides(settings: Sequence[str]) -> list[str]:
    """Settings as the command line takes them."""
    return [part for setting in settings for part in ("--set", setting)]


def judge(context: RunContext, policy: str, run: StageRun, suite: str) -> dict[str, Any]:
    """Greedy success on a suite of the home."""
    from flows.stages.rollouts import evaluate

    return evaluate(context, context.policy(policy), suite, run)


def do(context: RunContext, run_id: str, stage: str, work: Work, meter: Meter | None = None) -> None:
    """A stage's work with its row in the lake, unless it is done; Prefect, which would start a server for each home, is not needed."""
    run_attempt(context.lake, run_id, stage, 1, context.config.for_turn(1).model_dump(mode="json"), work, meter)


def copy_home(source: Home, home: Home, config: FlywheelConfig, without: Sequence[str] = ()) -> None:
    """A home with the lake and the policies of `source` under another configuration; there as a whole or not at all.

    `without` are patterns of names that stay behind.
    """
    draft = Home(home.root.with_name(f"{home.root.name}.draft"))
    shutil.rmtree(draft.root, ignore_errors=True)
    draft.claim(config)
    for part in ("lake", "policies"):
        shutil.copytree(source.root / part, draft.root / part, ignore=shutil.ignore_patterns(*without))
    draft.root.rename(home.root)
