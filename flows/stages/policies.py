"""What every training stage leaves: a policy's folder, and its row in the lake."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.plan import policy_id
from flows.runs import StageRun
from flows.workshop import Workshop
from warehouse import Policy
from warehouse.digests import digest_files

if TYPE_CHECKING:
    from rl.learning.training import TrainResult


def finish(shop: Workshop, run: StageRun, turn: int, stage: str, parent: str, result: TrainResult, variant: str = "") -> dict[str, Any]:
    """Register the policy that training made, and take away what only its resumption needed; returns the stage's figures."""
    policy = policy_id(turn, stage, variant)
    register(shop, policy, parent, stage, result.path, turn, run.run.snapshot_before)
    for name in ("checkpoints", "weights"):
        shutil.rmtree(result.path / name, ignore_errors=True)
    return {"policy": policy, **result.figures}


def register(shop: Workshop, policy: str, parent: str | None, stage: str, folder: Path, turn: int, snapshot: int | None = None) -> None:
    """Enter a policy into the lake: its path relative to the home, so that a home can be moved, and the digest of its files."""
    shop.lake.replace([Policy(policy, parent, stage, str(folder.relative_to(shop.home.root)), digest_files(folder), snapshot, turn)])
