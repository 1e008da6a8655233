"""One commit a batch against one a trajectory: `python -m benchmarks.lake_commits [--json]`.

Each way stores the same 96 trajectories of three turns, an RL step's worth, in a fresh lake; three rounds of both, in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from warehouse import Lake, Outcome, StopReason, Trajectory, Turn

STEP = 96


def trajectory(number: int, round_: int) -> Trajectory:
    """A trajectory of three turns with token ids of the usual length."""
    ids = tuple(range(30))
    turns = tuple(
        Turn(i, ids, tuple(-0.1 for _ in ids), "action", "search", "query", ids * 2, "observation", None, "ok", 0.1, 1) for i in range(3)
    )
    name = f"{round_}-{number}"
    return Trajectory(name, "task", "policy", "rl", 5, ids, turns, StopReason.ANSWERED, Outcome.SUCCESS, 1.0, 0, datetime.now(UTC), 0.5)


def seconds(batches: Iterable[list[Trajectory]]) -> float:
    """How long a fresh lake takes to store `batches`, one commit each."""
    with tempfile.TemporaryDirectory() as folder, Lake(Path(folder)) as lake:
        lake.add([trajectory(0, -1)])
        started = time.perf_counter()
        for batch in batches:
            lake.add(batch)
        return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json: bool = parser.parse_args().json
    batch: list[float] = []
    single: list[float] = []
    for round_ in range(3):
        trajectories = [trajectory(number, round_) for number in range(STEP)]
        batch.append(seconds([trajectories]))
        single.append(seconds([[one] for one in trajectories]))
    ratios = [b / a for a, b in zip(batch, single, strict=True)]
    figures = {"batch_seconds": statistics.median(batch), "single_seconds": statistics.median(single), "ratio": statistics.median(ratios)}
    if as_json:
        print(json.dumps(figures | {"ratios": ratios}))
    else:
        print(f"{'one commit for the step':32} {figures['batch_seconds']:.3f} s")
        print(f"{'one commit a trajectory':32} {figures['single_seconds']:.3f} s")
        print(f"{'ratio, median of 3':32} {figures['ratio']:.1f}")


if __name__ == "__main__":
    main()
